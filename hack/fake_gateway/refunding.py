"""Refunds: keyed, full or partial, and their sum never above what the charge took.

Refunds that are being committed count as well, so that two at once cannot both pass; and once, though they may be stored already.
"""

import collections
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hack.fake_gateway import decide, documents
from hack.fake_gateway.keyed import Attempt, Dialect
from hack.fake_gateway.model import Answer, ChargeStatus, Event, RefundRequest
from hack.fake_gateway.store import Made, NewRefund, Store


def answer(document: dict[str, Any]) -> Answer:
    """The answer of the protocol of our own to a refund that was made."""
    return documents.answer(200, document)


class Refunding:
    """The refunds of one provider."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reserved: collections.defaultdict[str, dict[str, int]] = collections.defaultdict(dict)
        """Amounts by charge and refund."""

    def refund(
        self,
        request: RefundRequest,
        charge: dict[str, Any],
        dialect: Dialect,
        to_answer: Callable[[dict[str, Any]], Answer] = answer,
    ) -> "Refund":
        """A refund of this charge, which is one of ours."""
        asked = dataclasses.replace(
            request, payment_method=charge["payment_method"], service=charge["metadata"].get("service", "")
        )
        return Refund(asked=asked, charge=charge, refunding=self, dialect=dialect, answer=to_answer)


@dataclasses.dataclass(slots=True, kw_only=True)
class Refund:
    """The operation behind POST /v1/refunds."""

    asked: RefundRequest
    charge: dict[str, Any]
    refunding: Refunding
    dialect: Dialect
    answer: Callable[[dict[str, Any]], Answer]
    _reserved: str = ""

    def make(self, attempt: Attempt, now: float) -> tuple[Made | None, Answer]:
        refusal = self._refusal()
        if refusal is not None:
            return None, refusal
        status, settles_to = decide.refund_status(self.asked.payment_method)
        refund_id = decide.made_id("re_", attempt.seed, attempt.key, attempt.generation)
        self.refunding.reserved[self.asked.charge][refund_id] = self.asked.amount
        self._reserved = refund_id
        document = documents.refund(refund_id, self.asked, status, now)
        text = json.dumps(document)
        refund = NewRefund(
            refund_id=refund_id,
            document=text,
            settles_at=None if settles_to is None else now + attempt.behaviour.settle_after_seconds,
            settled=None if settles_to is None else json.dumps(documents.refund_settled(document, settles_to)),
        )
        told = Event(event_id=decide.event_id(refund_id, status), kind=f"refund.{status.value}", subject=text, created=now)
        return Made(refund=refund, event=told), self.answer(document)

    def finished(self) -> None:
        of_charge = self.refunding.reserved[self.asked.charge]
        of_charge.pop(self._reserved, None)
        if not of_charge:
            del self.refunding.reserved[self.asked.charge]

    def _refusal(self) -> Answer | None:
        if self.charge["status"] != ChargeStatus.SUCCEEDED:
            return self.dialect.not_refundable(f"this charge is {self.charge['status']}: only one that succeeded is refunded")
        if self.charge["currency"] != self.asked.currency:
            return self.dialect.invalid("currency", f"the charge is in {self.charge['currency']}")
        reserved = self.refunding.reserved.get(self.asked.charge, {})
        spent = self.refunding.store.refunded(self.asked.charge, besides=reserved) + sum(reserved.values())
        left: int = self.charge["amount"] - spent
        return self.dialect.refund_too_large(left) if self.asked.amount > left else None
