"""Who may be made an owner, over the whole product of what two databases can look like."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_shards.kube.model import (
    Behind,
    DatabaseState,
    Initialise,
    Placement,
    Refused,
    Unreachable,
    Unusable,
    Usable,
)
from billing_shards.kube.ownership import (
    Broken,
    Choosing,
    Initialising,
    NotReady,
    Owned,
    Ownership,
    PartlySeen,
    judge,
    owners_of,
    pending_moves,
    ranges,
    ranges_text,
)
from billing_shards.shards.model import Owner, OwnerState

ASKED = ("a", "a", "b", "b")
SHARDS = {"a": (0, 1), "b": (2, 3)}


def usable(name: str, shards: dict[int, OwnerState] | None, moved_to: str | None = None) -> Usable:
    owners = {
        shard: Owner(shard=shard, epoch=2, state=state, moved_to=moved_to if state is OwnerState.MOVED else None)
        for shard, state in (shards or {}).items()
    }
    return Usable(name=name, revision="0001", initialised=shards is not None, owners=owners, backlog={})


def owning(name: str, *shards: int) -> Usable:
    return usable(name, dict.fromkeys(shards, OwnerState.OWNER))


def states(name: str) -> dict[str, DatabaseState]:
    return {
        "down": Unreachable(name=name, reason="DatabaseUnavailable", message="down"),
        "refused": Refused(name=name, message="denied"),
        "behind": Behind(name=name, revision=None),
        "foreign": Unusable(name=name, reason="WrongDatabase", message="another's"),
        "empty": usable(name, None),
        "joined": usable(name, {}),
        "owning": owning(name, *SHARDS[name]),
    }


PLACEMENTS = {
    "none": None,
    "begun": Placement(databases=ASKED, complete=False),
    "complete": Placement(databases=ASKED, complete=True),
}


def rows_made(verdict: Ownership) -> list[tuple[str, int]]:
    steps: tuple[Initialise, ...] = ()
    if isinstance(verdict, Initialising):
        steps = verdict.steps
    if isinstance(verdict, Owned):
        steps = verdict.joining
    return [(step.database, shard) for step in steps for shard in step.shards]


@pytest.mark.parametrize(("a", "b", "placement"), list(product(states("a"), states("b"), PLACEMENTS)))
def test_rows_are_made_only_on_empty_databases_when_all_answer_and_the_choice_is_recorded(a: str, b: str, placement: str) -> None:
    verdict = judge((states("a")[a], states("b")[b]), PLACEMENTS[placement], ASKED, ASKED)
    made = rows_made(verdict)
    if made:
        assert placement == "begun"
        assert {a, b} <= {"empty", "owning"}
        assert {name for name, _ in made} == {name for name, state in (("a", a), ("b", b)) if state == "empty"}
    already = [(name, shard) for name, state in (("a", a), ("b", b)) if state == "owning" for shard in SHARDS[name]]
    shards = [shard for _, shard in already + made]
    assert len(set(shards)) == len(shards)
    if made:
        assert sorted(shards) == [0, 1, 2, 3]


@pytest.mark.parametrize(("a", "b", "placement"), list(product(states("a"), states("b"), PLACEMENTS)))
def test_verdicts(a: str, b: str, placement: str) -> None:
    verdict = judge((states("a")[a], states("b")[b]), PLACEMENTS[placement], ASKED, ASKED)
    answering = {"empty", "joined", "owning"}
    if (a, b) == ("owning", "owning"):
        assert isinstance(verdict, Owned)
    elif not {a, b} <= answering:
        partly = placement == "complete" and "foreign" not in (a, b)
        assert isinstance(verdict, PartlySeen if partly else NotReady)
    elif placement == "complete":
        assert isinstance(verdict, Broken)
        assert verdict.reason == "OwnershipLost"
    elif (a, b) == ("empty", "empty"):
        assert isinstance(verdict, Choosing if placement == "none" else Initialising)
    elif placement == "none" or "joined" in (a, b):
        assert isinstance(verdict, Broken)
    else:
        assert isinstance(verdict, Initialising)


def test_a_database_added_later_joins_without_shards() -> None:
    databases = (owning("a", 0, 1), owning("b", 2, 3), usable("c", None))
    verdict = judge(databases, PLACEMENTS["complete"], ("c", "a", "b", "b"), ASKED)
    assert verdict == Owned(owners=ASKED, joining=(Initialise(database="c", shards=()),))


def test_a_database_taken_off_the_list_while_it_owns_shards_is_named() -> None:
    verdict = judge((owning("a", 0, 1),), PLACEMENTS["complete"], ("a",) * 4, ASKED)
    assert isinstance(verdict, Broken)
    assert verdict.reason == "DatabaseInUse"
    assert "spec.databases" in verdict.message
    assert "b, which owned shards 2-3" in verdict.message


def test_a_recorded_choice_is_kept_when_the_spec_changes_half_way() -> None:
    verdict = judge((owning("a", 0, 1), usable("b", None)), PLACEMENTS["begun"], ("b", "b", "a", "a"), None)
    assert verdict == Initialising(steps=(Initialise(database="b", shards=(2, 3)),))


def test_two_owners_of_one_shard_are_never_taken_for_one() -> None:
    verdict = judge((owning("a", 0, 1, 2), owning("b", 2, 3)), PLACEMENTS["complete"], ASKED, ASKED)
    assert verdict == Broken(reason="ShardsDisputed", message="more than one database owns shards 2")


@pytest.mark.parametrize(
    ("source", "target", "owner"),
    [
        (OwnerState.OWNER, None, "a"),
        (OwnerState.OWNER, OwnerState.PREPARED, "a"),
        (OwnerState.FENCED, OwnerState.PREPARED, "a"),
        (OwnerState.MOVED, OwnerState.PREPARED, "b"),
        (OwnerState.MOVED, OwnerState.OWNER, "b"),
    ],
)
def test_the_owner_during_a_move_is_the_source_until_its_row_says_moved(
    source: OwnerState, target: OwnerState | None, owner: str
) -> None:
    a = usable("a", {0: source}, moved_to="b")
    b = usable("b", {} if target is None else {0: target})
    assert owners_of([a, b]) == ({0: owner}, [])
    assert owners_of([b, a]) == ({0: owner}, [])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=40))
def test_pending_moves_turn_the_owners_into_the_wanted_map(shards: list[tuple[str, str]]) -> None:
    owners, wanted = [pair[0] for pair in shards], [pair[1] for pair in shards]
    moved = list(owners)
    moves = pending_moves(owners, wanted)
    for move in moves:
        for shard in range(move.first, move.last + 1):
            assert moved[shard] == move.source != move.target
            moved[shard] = move.target
    assert moved == wanted
    for before, after in pairwise(moves):
        joined = before.last + 1 == after.first and (before.source, before.target) == (after.source, after.target)
        assert not joined


@given(st.sets(st.integers(0, 60)))
def test_ranges_are_the_fewest(shards: set[int]) -> None:
    found = ranges(sorted(shards))
    assert [shard for first, last in found for shard in range(first, last + 1)] == sorted(shards)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(found))


def test_ranges_as_text() -> None:
    assert ranges_text([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges_text(range(0, 40, 2), most=2) == "0, 2 and more"
