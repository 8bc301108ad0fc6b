"""What a process holds and hands to its workers: no lane in the way of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.jobs.agenda import Agenda
from billing_shards.jobs.held import Held
from billing_shards.jobs.lanes import Lanes
from billing_shards.jobs.model import RENEWAL, RETRY, Job, Lane, clock
from billing_shards.jobs.store import Due
from billing_shards.jobs.waiting import Waiting
from billing_shards.settings import parse_spec

_numbers = count(1)
VIDEO, VIDEO_RETRY, GONE = Lane(2), Lane(3), Lane(14)


def lanes(*services: dict[str, Any]) -> Lanes:
    database = {"name": "a", "host": "h", "credentialsSecret": {"name": "s"}, "schemaSecret": {"name": "s"}}
    return Lanes(parse_spec({"databases": [database], "gateway": {"url": "http://g"}, "services": list(services)}))


TWO = lanes({"name": "video", "lane": 1})


def job(lane: Lane) -> Job:
    number = next(_numbers)
    return Job(
        shard=1, id=number, lane=lane, subscription="s", invoice=1, amount=1, currency="USD", payment_method="pm",
        provider="http", key=b"", attempt_no=1, checks=0, resumed=False, canceling=False, attempt_age=0,
        claimed_at=clock(), grace_seconds=1, token=number,
    )  # fmt: skip


def jobs(lane: Lane, number: int) -> list[Job]:
    return [job(lane) for _ in range(number)]


def hold(held: Held, lane: Lane, number: int) -> list[Job]:
    """Claim so many, as a claimer does."""
    held.reserve(lane, number)
    claimed = jobs(lane, number)
    held.claimed(lane, number, claimed)
    return claimed


# Held


def test_a_lane_without_room_holds_up_no_other() -> None:
    held = Held(100, 50, TWO)
    held.note_due("a", [VIDEO, RENEWAL])
    lane, room = held.choose([VIDEO]) or pytest.fail("no room")
    hold(held, lane, room)
    assert held.choose([VIDEO]) is None
    chosen = held.choose([VIDEO, RENEWAL])
    assert chosen is not None
    assert chosen[0] == RENEWAL
    assert chosen[1] >= 37  # 100 by 3:1:3:1


def test_the_lane_that_uses_the_least_of_its_share_is_first() -> None:
    held = Held(1000, 10, TWO)
    hold(held, RENEWAL, 90)
    hold(held, RETRY, 40)
    hold(held, VIDEO, 60)
    assert (held.choose([RENEWAL, RETRY, VIDEO]) or (None,))[0] == VIDEO
    assert (held.choose([RENEWAL, RETRY]) or (None,))[0] == RENEWAL


def test_shares_are_kept_for_lanes_that_are_due_on_another_database() -> None:
    held = Held(100, 50, TWO)
    alone = held.choose([VIDEO])
    held.note_due("b", [RENEWAL])
    beside = held.choose([VIDEO])
    held.note_due("b", ())
    assert alone is not None
    assert beside is not None
    assert alone[1] > beside[1]
    assert held.choose([VIDEO]) == alone


def test_a_lane_that_the_spec_lists_no_more_counts_as_the_common_one() -> None:
    held = Held(100, 50, TWO)
    gone = hold(held, GONE, 60)
    assert held.choose([GONE]) is None
    assert held.choose([RENEWAL]) is None
    assert held.choose([VIDEO]) is not None
    held.drop(gone)
    assert held.jobs == {}
    assert held.choose([RENEWAL]) is not None


def test_a_change_is_waited_for_and_not_for_ever() -> None:
    async def main() -> tuple[bool, bool]:
        held = Held(10, 10, TWO)
        asyncio.get_running_loop().call_soon(held.wake)
        return await held.change(), await held.change(0.01)

    assert asyncio.run(main()) == (True, False)


# Waiting


async def taken(waiting: Waiting, workers: int) -> list[Job]:
    """Let idle workers take what they get at once; they never finish."""
    mine: list[Job] = []

    async def work() -> None:
        mine.append(await waiting.take())

    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    for _ in range(workers + 2):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return mine


def by_lane(found: Iterable[Job]) -> Counter[Lane]:
    return Counter(one.lane for one in found)


def test_jobs_of_a_lane_that_hang_leave_workers_to_the_others() -> None:
    """16 workers by 3:1:3:1, and far more held than that."""

    async def main() -> tuple[Counter[Lane], Counter[Lane]]:
        waiting = Waiting(16, 1000, TWO)
        waiting.put(jobs(VIDEO, 500))
        hanging = await taken(waiting, 16)
        waiting.put(jobs(RENEWAL, 5))
        waiting.put(jobs(RETRY, 5))
        return by_lane(hanging), by_lane(await taken(waiting, 16 - len(hanging)))

    hanging, others = asyncio.run(main())
    assert 4 <= hanging[VIDEO] < 16
    assert others[RENEWAL] >= 2
    assert others[RETRY] >= 1
    assert others[VIDEO] == 0


def test_within_a_lane_jobs_are_begun_in_order_and_a_free_worker_takes_the_next() -> None:
    async def main() -> None:
        waiting = Waiting(2, 10, lanes())
        first = jobs(RENEWAL, 4)
        waiting.put(first)
        begun = await taken(waiting, 2)
        assert begun == first[: len(begun)]
        waiting.done(begun[0])
        assert await waiting.take() == first[len(begun)]

    asyncio.run(main())


def test_a_worker_that_waits_is_woken_and_one_that_gave_up_is_not_counted_on() -> None:
    async def main() -> None:
        waiting = Waiting(5, 5, TWO)
        assert await taken(waiting, 3) == []
        worker = asyncio.create_task(waiting.take())
        await asyncio.sleep(0)
        (one,) = jobs(RETRY, 1)
        waiting.put([one])
        async with asyncio.timeout(5):
            assert await worker == one

    asyncio.run(main())


def test_what_nobody_has_begun_is_given_back() -> None:
    async def main() -> None:
        waiting = Waiting(3, 100, TWO)
        waiting.put([*jobs(VIDEO, 20), *jobs(GONE, 20)])
        begun = await taken(waiting, 3)
        assert len(begun) + len(waiting.take_all()) == 40
        assert waiting.take_all() == []

    asyncio.run(main())


@given(st.lists(st.sampled_from([RENEWAL, RETRY, VIDEO, VIDEO_RETRY, GONE]), max_size=60), st.integers(1, 20))
def test_every_job_is_begun_once_and_no_more_at_once_than_there_are_workers(order: list[Lane], workers: int) -> None:
    """As long as charges end, every job is charged, whatever the lanes."""

    async def main() -> None:
        waiting = Waiting(workers, workers * 3, TWO)
        charged: list[int] = []
        under_way = 0

        async def work() -> None:
            nonlocal under_way
            while True:
                one = await waiting.take()
                under_way += 1
                assert under_way <= workers
                await asyncio.sleep(0)
                under_way -= 1
                charged.append(one.id)
                waiting.done(one)

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        due = [job(lane) for lane in order]
        waiting.put(due)
        for _ in range(3 * len(order) + 5):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(charged) == sorted(one.id for one in due)

    asyncio.run(main())


# Agenda


def test_shards_of_a_lane_take_turns() -> None:
    due = [Due(shard=shard, lane=lane, in_seconds=-1) for lane in (RENEWAL, VIDEO) for shard in (1, 2)]
    agenda = Agenda(due)
    first = agenda.take(VIDEO)
    agenda.again(first)
    assert [agenda.take(VIDEO).shard, agenda.take(VIDEO).shard] == [2, 1]
    assert list(agenda.lanes) == [RENEWAL]
    assert bool(agenda)
