"""Who owns which shard, and when a database may be made an owner. Pure.

An ownership row lets a database bill a shard, so two rows for one shard are two bills. Rows are therefore made only once, and
only when *every* database answers, has its schema, and none was ever set up: a database that cannot be asked is not an empty
one. What is chosen is written down (`Placement`) before the first row is made, so that an operator killed between two
databases goes on with the same choice and no other. Once every shard was seen owned, the placement is `complete` and no row
is ever made again: a database found empty after that has lost its data, and a person has to bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from billing_shards.kube.model import DatabaseState, Initialise, Placement, Unusable, Usable
from billing_shards.shards.model import OwnerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Every shard has its one owner. `joining`: databases that were added since and own nothing yet."""

    owners: tuple[str, ...]
    joining: tuple[Initialise, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlySeen:
    """Every shard had an owner once, but some databases cannot be asked now. `owners` as far as known."""

    owners: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """Nothing is owned and all is ready: write down this choice."""

    databases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialising:
    """A choice is written down and these databases have not got their rows yet."""

    steps: tuple[Initialise, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """Nothing can be said before every database answers and has its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A person has to look. Nothing is changed."""

    reason: str
    message: str


Ownership: TypeAlias = Owned | PartlySeen | Choosing | Initialising | NotReady | Broken


def judge(
    databases: Sequence[DatabaseState],
    placement: Placement | None,
    asked: Sequence[str],
    last_known: Sequence[str] | None,
) -> Ownership:
    """Say what follows from the fences. `asked`: the database the spec gives each shard to."""
    usable = [database for database in databases if isinstance(database, Usable)]
    owners, disputed = owners_of(usable)
    if disputed:
        return Broken(reason="ShardsDisputed", message=f"more than one database owns shards {ranges_text(disputed)}")
    if len(owners) == len(asked):
        joining = [Initialise(database=d.name, shards=()) for d in usable if not d.initialised]
        return Owned(owners=tuple(owners[shard] for shard in range(len(asked))), joining=tuple(joining))
    if len(usable) < len(databases):
        if any(isinstance(database, Unusable) for database in databases):
            return NotReady()
        return PartlySeen(owners=owners) if placement is not None and placement.complete else NotReady()
    missing = [shard for shard in range(len(asked)) if shard not in owners]
    if placement is not None and placement.complete:
        return _lost(missing, last_known, [database.name for database in databases])
    return _first_owners(usable, placement, asked, missing)


def _first_owners(
    usable: Sequence[Usable], placement: Placement | None, asked: Sequence[str], missing: Sequence[int]
) -> Ownership:
    initialised = [database for database in usable if database.initialised]
    if placement is None:
        if not initialised:
            return Choosing(databases=tuple(asked))
        names = ", ".join(database.name for database in initialised)
        return Broken(
            reason="PartlyInitialised",
            message=f"shards {ranges_text(missing)} have no owner although databases {names} were set up before;"
            " restore the missing database, or start with empty ones",
        )
    unlisted = sorted(set(placement.databases) - {database.name for database in usable})
    if unlisted or len(placement.databases) != len(asked):
        return Broken(
            reason="PlacementOutdated",
            message=f"the recorded placement does not fit spec (databases not listed: {', '.join(unlisted) or 'none'});"
            " it was begun and cannot be changed half-way",
        )
    strangers = [database.name for database in initialised if set(database.owners) != _share(placement, database.name)]
    if strangers:
        return Broken(
            reason="PlacementContradicted",
            message=f"databases {', '.join(strangers)} own other shards than the recorded placement gives them",
        )
    steps = [
        Initialise(database=database.name, shards=tuple(sorted(_share(placement, database.name))))
        for database in usable
        if not database.initialised
    ]
    return Initialising(steps=tuple(steps))


def _share(placement: Placement, database: str) -> set[int]:
    return {shard for shard, name in enumerate(placement.databases) if name == database}


def _lost(missing: Sequence[int], last_known: Sequence[str] | None, listed: Sequence[str]) -> Broken:
    """Shards that once had an owner have none now, although every listed database was asked."""
    gone = sorted({last_known[shard] for shard in missing} - set(listed)) if last_known else []
    if gone:
        return Broken(
            reason="DatabaseInUse",
            message=f"spec.databases: no longer lists {', '.join(gone)}, which owned shards {ranges_text(missing)};"
            " list it again until its shards have been moved",
        )
    return Broken(
        reason="OwnershipLost",
        message=f"shards {ranges_text(missing)} have lost their owner: a database is empty or was restored too early;"
        " restore it from a backup, nothing is billed for these shards until then",
    )


def owners_of(databases: Iterable[Usable]) -> tuple[dict[int, str], list[int]]:
    """The owner of each shard as the fences have it, and the shards that two databases claim.

    A shard being handed over is still its source's while the source has it fenced, and its target's as soon as the source
    says `moved`: that one row is the commit point.
    """
    holders: dict[int, list[str]] = {}
    moved: dict[int, tuple[int, str]] = {}
    for database in databases:
        for shard, owner in database.owners.items():
            if owner.state in (OwnerState.OWNER, OwnerState.FENCED):
                holders.setdefault(shard, []).append(database.name)
            elif owner.state is OwnerState.MOVED and owner.moved_to is not None:
                moved[shard] = max(moved.get(shard, (0, "")), (owner.epoch, owner.moved_to))
    owners = {shard: target for shard, (_, target) in moved.items()} | {s: names[0] for s, names in holders.items()}
    return owners, sorted(shard for shard, names in holders.items() if len(names) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Shards `first` to `last` are on `source` and shall be on `target`."""

    first: int
    last: int
    source: str
    target: str


def pending_moves(owners: Sequence[str], wanted: Sequence[str]) -> tuple[Move, ...]:
    """What differs between the fences and the map that is asked for, as the fewest ranges."""
    runs = groupby(range(len(owners)), key=lambda shard: (owners[shard], wanted[shard]))
    spans = [(pair, list(shards)) for pair, shards in runs if pair[0] != pair[1]]
    return tuple(Move(first=s[0], last=s[-1], source=source, target=target) for (source, target), s in spans)


def ranges(shards: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending shards as the fewest ranges, both ends included."""
    runs = groupby(enumerate(shards), key=lambda pair: pair[1] - pair[0])
    spans = [[shard for _, shard in run] for _, run in runs]
    return [(span[0], span[-1]) for span in spans]


def ranges_text(shards: Iterable[int], most: int = 8) -> str:
    """`0-63, 70`, cut after `most` ranges."""
    parts = [f"{first}-{last}" if first != last else str(first) for first, last in ranges(shards)]
    return ", ".join(parts) if len(parts) <= most else f"{', '.join(parts[:most])} and more"
