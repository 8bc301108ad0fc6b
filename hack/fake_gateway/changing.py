"""What becomes of a charge after it was made: the caller cancels it, the customer completes it, the bank takes it back.

Each is one transaction that changes the charge only if it still is as it was when it was judged; so of a cancel and a completion
at once, by hand or by settlement, exactly one happens.
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hack.fake_gateway import decide, documents
from hack.fake_gateway.charging import asked_of
from hack.fake_gateway.clock import Clock
from hack.fake_gateway.model import ChargeStatus, Config, Fault
from hack.fake_gateway.store import Store

Document = dict[str, Any]

WAITING = frozenset({ChargeStatus.REQUIRES_ACTION})
_MADE = frozenset({ChargeStatus.SUCCEEDED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The charge as it is now, and whether this made it so; `dropped`: the answer is to be lost."""

    document: Document
    done: bool
    dropped: bool = False


class Changing:
    """The changes of one provider's charges; each returns None where there is no such charge. Made inside the event loop."""

    def __init__(self, store: Store, clock: Clock, config: Callable[[], Config]) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        # A charge's lost answer is lost once, also where two ask at once: both would find that it was not lost yet.
        self._one_at_a_time = asyncio.Lock()

    async def reverse(self, charge_id: str, code: str) -> Change | None:
        """The bank takes the money back of a charge that had succeeded."""
        return await self._change(charge_id, _MADE, lambda charge: documents.reversed_charge(charge, code))

    async def complete(self, charge_id: str, *, fails: bool) -> Change | None:
        """The customer does what a charge waits for, or fails at it."""
        return await self._change(charge_id, WAITING, lambda charge: documents.completed_charge(charge, fails=fails))

    async def cancel(
        self, charge_id: str, statuses: frozenset[ChargeStatus] = WAITING, fields: Document | None = None
    ) -> Change | None:
        """A charge with one of these statuses is not to be completed any more; `fields` are kept with it."""
        return await self._change(
            charge_id, statuses, lambda charge: documents.canceled_charge(charge) | (fields or {}), self._fault_of_cancel
        )

    async def _change(
        self,
        charge_id: str,
        statuses: frozenset[ChargeStatus],
        to: Callable[[Document], Document],
        fault_of: Callable[[Document], Fault | None] = lambda _: None,
    ) -> Change | None:
        tell = self._config().webhook_url is not None
        async with self._one_at_a_time:
            now = self._clock.now()
            await self._store.settle(now, tell=tell)
            before = self._store.charge(charge_id)
            if before is None:
                return None
            charge = json.loads(before)
            fault = fault_of(charge)
            after = json.dumps(to(charge)) if charge["status"] in statuses else before
            if after == before and fault is None:
                return Change(document=charge, done=False)
            is_now = await self._store.change_charge(charge_id, before, after, told=now if tell else None, fault=fault)
        if is_now is None:
            return None
        return Change(document=json.loads(is_now), done=is_now == after != before, dropped=fault is not None)

    def _fault_of_cancel(self, charge: Document) -> Fault | None:
        config, fault = self._config(), Fault.CANCEL_LOST_ANSWER
        if not decide.loses_cancel(config.behaviour_for(asked_of(charge)), config.seed, charge["id"]):
            return None
        return None if fault in self._store.faults_seen(charge["id"], 0) else fault
