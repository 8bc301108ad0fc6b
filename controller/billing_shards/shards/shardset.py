"""From a spec and the Secrets it names to a router: opens the databases and reads who owns what from the fences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from sqlalchemy import event

from billing_shards import schema
from billing_shards.db import Database, open_database, translated
from billing_shards.errors import InvalidInput, SchemaBehind, WrongDatabase
from billing_shards.settings import Credentials, DatabaseSpec, ShardSetSpec
from billing_shards.shards import store
from billing_shards.shards.map import ShardMap
from billing_shards.shards.model import Installation, Owner, OwnerState
from billing_shards.shards.transactions import ShardRouter

Role = Literal["application", "schema"]


class Secrets(Protocol):
    """Where the values of Secrets come from. Asked anew each time, so that a changed Secret is taken."""

    def value(self, secret: str, key: str) -> str:
        """Raises `InvalidInput` that names Secret and key where either is missing."""


class FolderSecrets:
    """One folder a Secret, one file a key: how a pod sees them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def value(self, secret: str, key: str) -> str:
        """See `Secrets`."""
        try:
            return (self._folder / secret / key).read_text().rstrip("\n")
        except (OSError, ValueError) as error:
            raise InvalidInput(f"secret {secret}", f"key {key} cannot be read ({type(error).__name__})") from error


class ManifestSecrets:
    """The Secrets that stand beside a BillingShardSet in a file."""

    def __init__(self, secrets: Mapping[str, Mapping[str, str]]) -> None:
        self._secrets = secrets

    def value(self, secret: str, key: str) -> str:
        """See `Secrets`."""
        try:
            return self._secrets[secret][key]
        except KeyError:
            raise InvalidInput(f"secret {secret}", f"key {key} is not in the manifest") from None


def credentials(spec: DatabaseSpec, secrets: Secrets, role: Role = "application") -> Credentials:
    """User and password of one role. Raises `InvalidInput`."""
    secret = (spec.credentials_secret if role == "application" else spec.schema_secret).name
    username, password = secrets.value(secret, "username"), secrets.value(secret, "password")
    if not username:
        raise InvalidInput(f"secret {secret}", "key username is empty")
    return Credentials(username=username, password=password)


def open_databases(
    spec: ShardSetSpec, secrets: Secrets, *, role: Role = "application", pool_size: int = 5
) -> dict[str, Database]:
    """A pool for each database of the spec, by name; nothing is connected yet."""
    return {
        database.name: open_database(
            database,
            partial(credentials, database, secrets, role),
            ca=partial(_ca, database, secrets),
            pool_size=pool_size,
        )
        for database in spec.databases
    }


def _ca(spec: DatabaseSpec, secrets: Secrets) -> str | None:
    return None if spec.tls.ca_secret is None else secrets.value(spec.tls.ca_secret.name, "ca.crt")


def open_router(name: str, spec: ShardSetSpec, secrets: Secrets, *, pool_size: int = 5) -> ShardRouter:
    """A router whose owners are as the fences say.

    Raises `SchemaBehind`, `SchemaTooNew`, `WrongDatabase`, `DatabaseError`s, `InvalidInput`.
    """
    databases = open_databases(spec, secrets, pool_size=pool_size)
    try:
        return ShardRouter(databases, read_owners(name, spec, databases))
    except BaseException:
        for database in databases.values():
            database.close()
        raise


def read_owners(name: str, spec: ShardSetSpec, databases: Mapping[str, Database]) -> dict[int, str]:
    """Which database each shard is on, from the fences of all databases, each of which must belong to this shard set."""
    owners: dict[int, str] = {}
    for database in databases.values():
        for owner in _fences(name, spec, database).values():
            if owner.state is not OwnerState.MOVED:
                owners[owner.shard] = database.name
    return owners


def check_database(name: str, spec: ShardSetSpec, database: Database) -> None:
    """Raise `SchemaBehind`, `SchemaTooNew`, `WrongDatabase` or a `DatabaseError` unless it is this set's, and ready for us."""
    _fences(name, spec, database)


def check_each_connection(name: str, spec: ShardSetSpec, database: Database) -> None:
    """From now on, no connection to a database of another set is ever used: it raises `WrongDatabase` instead."""

    @event.listens_for(database.engine, "connect")
    def check(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(store.INSTALLATION)
            row = cursor.fetchone()
        connection.rollback()
        _compare(name, spec, database, None if row is None else store.installation_of(row))


def _fences(name: str, spec: ShardSetSpec, database: Database) -> dict[int, Owner]:
    schema.check(database)
    with translated(database.name), database.engine.connect() as connection:
        _compare(name, spec, database, store.read_installation(connection))
        return store.read_owners(connection)


def _compare(name: str, spec: ShardSetSpec, database: Database, installation: Installation | None) -> None:
    if installation is None:
        raise SchemaBehind(database.name, "is not set up yet: no shard was ever placed on it")
    found = (installation.shard_set, installation.shard_count, installation.database)
    if found != (name, spec.shard_count, database.name):
        raise WrongDatabase(database.name, f"was set up as database {found[2]} of {found[0]} with {found[1]} shards")


def set_up(name: str, spec: ShardSetSpec, databases: Mapping[str, Database]) -> None:
    """Without a cluster: place the shards on the databases as the spec's map says, each shard once in its life.

    A shard that any database already knows stays where it is, so a set-up that ended half-way, or a database added later, gives
    no shard a second owner. Every database of the spec must be reachable: raises `DatabaseError`s before anything is written.
    """
    shard_map = ShardMap.from_spec(spec)
    known: set[int] = set()
    new: list[Database] = []
    for database in databases.values():
        with translated(database.name), database.engine.connect() as connection:
            is_new = store.read_installation(connection) is None
            known |= store.read_owners(connection).keys()
        if is_new:
            new.append(database)
    for database in new:
        shards = [shard for shard in shard_map.shards_of(database.name) if shard not in known]
        with translated(database.name), database.engine.connect() as connection:
            store.initialise(connection, shard_set=name, shard_count=spec.shard_count, database=database.name, shards=shards)
