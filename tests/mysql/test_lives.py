"""Whole lives at random: whatever happens to a subscription, in whatever order, the books are whole after each chapter."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import pytest

from billing_shards.billing import subscriptions
from billing_shards.billing.model import Status
from billing_shards.billing.periods import Interval, Unit
from billing_shards.billing.terms import Change
from billing_shards.errors import InvalidInput, NotPossible
from billing_shards.jobs.model import Job
from billing_shards.payments.model import Outcome, Unknown
from tests.mysql.life import BY, HARD, NEW_METHOD, PAID, SOFT, Life
from tests.mysql.shard_set import ShardSet

OUTCOMES: list[Outcome] = [PAID, PAID, SOFT, SOFT, HARD, NEW_METHOD, Unknown(reason="time-out")]
INTERVALS = [Interval(unit=Unit.MONTH, count=1), Interval(unit=Unit.WEEK, count=2), Interval(unit=Unit.DAY, count=10)]
CHAPTERS, ACTS = 4, 12


class Story:
    """Moves one life on by random acts. Jobs that are claimed may stay open for some acts."""

    def __init__(self, life: Life, seed: int) -> None:
        self.life = life
        self.rng = random.Random(seed)  # noqa: S311 - the same story for the same seed
        self.router = life.shard_set.router
        self.open: list[Job] = []
        self.day = 0.0
        self.methods = 0

    def act(self) -> None:
        acts = [self.wait, self.wait, self.schedule, self.claim, self.claim, self.settle, self.settle, self.dun, self.method]
        self.rng.choice([*acts, self.update, self.catch_up, *([self.cancel] if self.rng.random() < 0.2 else [])])()

    def wait(self) -> None:
        self.day += self.rng.choice([0.1, 1, 5, 20, 70])
        self.life.at(self.day)

    def schedule(self) -> None:
        self.life.schedule(missed_max=4, catch_up_max=self.rng.randint(1, 5))

    def claim(self) -> None:
        self.open += self.life.claim()

    def settle(self) -> None:
        if self.open:
            self.life.settle([self.open.pop(self.rng.randrange(len(self.open)))], self.rng.choice(OUTCOMES))

    def dun(self) -> None:
        self.life.dun()

    def method(self) -> None:
        self.methods += 1
        with suppress(NotPossible):
            name = f"pm_{self.methods}"
            subscriptions.change_payment_method(self.router, self.life.subject, name, grace_seconds=5 * 86_400, by=BY)

    def update(self) -> None:
        with suppress(NotPossible, InvalidInput):
            change = Change(
                amount=self.rng.choice([None, 500, 1500]),
                service=self.rng.choice([None, "video", "music"]),
                interval=self.rng.choice([None, *INTERVALS]),
            )
            subscriptions.update(self.router, self.life.subject, change, by=BY)

    def catch_up(self) -> None:
        with suppress(NotPossible):
            if self.rng.random() < 0.5:
                subscriptions.catch_up(self.router, self.life.subject, periods=self.rng.randint(1, 6), by=BY)
            else:
                subscriptions.catch_up(self.router, self.life.subject, skip_to=self.life.now.date() - timedelta(days=9), by=BY)

    def cancel(self) -> None:
        with suppress(NotPossible, InvalidInput):
            options = {"at_period_end": self.rng.random() < 0.5, "write_off": self.rng.random() < 0.5}
            subscriptions.cancel(self.router, self.life.subject, **options, by=BY)

    def end_chapter(self) -> None:
        """Nothing is under way, and all that is due is done."""
        while self.open:
            self.settle()
        self.schedule()
        self.dun()


def check(life: Life) -> None:
    found = life.periods()
    assert all(start < end for start, end, _ in found)
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    row = life.row
    late = any(one.unpaid.late for one in subscriptions.show(life.shard_set.router, life.subject).owed)
    assert row.status is Status.CANCELED or late is (row.status is not Status.ACTIVE)
    assert (row.next_invoice_at is not None) is row.is_invoiced
    assert row.status is not Status.CANCELED or life.events().count("subscription.canceled") == 1
    assert life.is_clean()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_books_are_whole(make_shard_set: Callable[..., ShardSet], seed: int) -> None:
    retry = {"delaysSeconds": [86_400], "attemptsMax": 3, "jitter": 0, "graceSeconds": 10 * 86_400}
    dunning = {"suspendAfterSeconds": 8 * 86_400, "cancelAfterSeconds": 60 * 86_400}
    life = Life(make_shard_set(shardCount=1, smoothing={"windowSeconds": 0}, retry=retry, dunning=dunning))
    story = Story(life, seed)
    for _ in range(CHAPTERS):
        for _ in range(ACTS):
            story.act()
        story.end_chapter()
        check(life)
