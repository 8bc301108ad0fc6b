"""A charge: what becomes of it, and the document that is kept of it."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hack.fake_gateway import decide, documents
from hack.fake_gateway.keyed import Attempt, Dialect
from hack.fake_gateway.model import Answer, ChargeRequest, ChargeStatus, Event, Outcome
from hack.fake_gateway.store import Made, NewCharge, Store


def answer(document: dict[str, Any]) -> Answer:
    """The answer of the protocol of our own to a charge that was made."""
    if document["status"] == ChargeStatus.FAILED:
        return documents.declined(document)
    return Answer(http_status=200, body=json.dumps(document))


def asked_of(document: dict[str, Any]) -> ChargeRequest:
    """What a charge was asked for with."""
    names = ("amount", "currency", "payment_method", "reference", "metadata")
    return ChargeRequest(**{name: document[name] for name in names}, customer=document.get("customer"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The operation behind POST /v1/charges and Stripe's POST /v1/payment_intents."""

    asked: ChargeRequest
    store: Store
    dialect: Dialect
    answer: Callable[[dict[str, Any]], Answer] = answer
    prefix: str = "ch_"
    """Of ids: it tells the two protocols' charges apart."""

    def make(self, attempt: Attempt, now: float) -> tuple[Made, Answer]:
        outcome = self._outcome(attempt)
        charge_id = decide.made_id(self.prefix, attempt.seed, attempt.key, attempt.generation)
        document = documents.charge(charge_id, self.asked, outcome, now)
        unsettled = outcome.settles_to is not None
        text = json.dumps(document)
        charge = NewCharge(
            charge_id=charge_id,
            group=self.asked.group,
            document=text,
            settles_at=now + outcome.settle_after_seconds if unsettled else None,
            settled=json.dumps(documents.settled(document, outcome)) if unsettled else None,
        )
        status = outcome.status.value
        event = Event(event_id=decide.event_id(charge_id, status), kind=f"charge.{status}", subject=text, created=now)
        return Made(charge=charge, event=event), self.answer(document)

    def finished(self) -> None:
        pass

    def _outcome(self, attempt: Attempt) -> Outcome:
        method = self.asked.payment_method
        counted = decide.declines_first(method) is not None
        declined_before = self.store.declines_of_group(self.asked.group, method) if counted else 0
        return decide.outcome(attempt.behaviour, attempt.seed, attempt.key, method, declined_before)
