"""What one database says of itself, asked as the application's user.

Whatever goes wrong is part of the answer, in words that name the database and never repeat what it was given.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from billing_shards import schema
from billing_shards.db import Database, open_database, queries, translated
from billing_shards.errors import AccessDenied, DatabaseError, InvalidInput, SchemaBehind, SchemaTooNew, TlsRefused
from billing_shards.jobs import store as jobs
from billing_shards.kube.model import Behind, DatabaseState, Refused, ShardBacklog, Unreachable, Unusable, Usable
from billing_shards.settings import DatabaseSpec, ShardSetSpec
from billing_shards.shards import shardset, store

ANSWER_SECONDS = 15
"""A database that hangs holds a thread of the operator no longer than a few times this."""
_q = queries("operator")


def ask(shard_set: str, spec: ShardSetSpec, database: DatabaseSpec, secrets: shardset.Secrets) -> DatabaseState:
    """What one database says of itself, asked as the application's user."""
    try:
        credentials = shardset.credentials(database, secrets)
        ca = secrets.value(database.tls.ca_secret.name, "ca.crt") if database.tls.ca_secret is not None else None
    except InvalidInput as error:
        return Unreachable(name=database.name, reason="SecretMissing", message=f"database {database.name}: {error}")
    opened: Database | None = None
    try:
        opened = open_database(database, lambda: credentials, ca=lambda: ca, pool_size=1, answer_seconds=ANSWER_SECONDS)
        return _examine(shard_set, spec, opened)
    except AccessDenied as error:
        return Refused(name=database.name, message=f"{error} (user {credentials.username})")
    except TlsRefused as error:
        return Unreachable(name=database.name, reason="TlsRefused", message=str(error))
    except ssl.SSLError:
        message = f"database {database.name}: tls.caSecret: ca.crt holds no certificate that can be read"
        return Unreachable(name=database.name, reason="TlsRefused", message=message)
    except DatabaseError as error:
        return Unreachable(name=database.name, reason="DatabaseUnavailable", message=f"{error}, at {_address(database)}")
    except (SQLAlchemyError, OSError, ValueError) as error:
        # Not one of the failures we know. Its text is the driver's and may repeat what it was given: only its kind is told.
        message = f"database {database.name}: cannot be asked ({type(error).__name__}), at {_address(database)}"
        return Unreachable(name=database.name, reason="DatabaseUnavailable", message=message)
    finally:
        if opened is not None:
            opened.close()


def _address(database: DatabaseSpec) -> str:
    return f"{database.host}:{database.port}"


def _examine(shard_set: str, spec: ShardSetSpec, database: Database) -> DatabaseState:
    revision = schema.current_revision(database)
    try:
        schema.check(database)
    except SchemaBehind:
        return Behind(name=database.name, revision=revision)
    except SchemaTooNew as error:
        return Unusable(name=database.name, reason="SchemaTooNew", message=str(error), revision=revision)
    if revision is None:
        raise AssertionError("a schema without a revision is never current")
    with translated(database.name), database.engine.connect() as connection:
        installation = store.read_installation(connection)
        if installation is not None:
            found = (installation.shard_set, installation.shard_count, installation.database)
            if found != (shard_set, spec.shard_count, database.name):
                words = f"database {database.name}: was set up as {found[2]!r} of {found[0]!r} with {found[1]} shards"
                return Unusable(name=database.name, reason="WrongDatabase", message=words, revision=revision)
        owners = store.read_owners(connection)
        now: datetime = connection.exec_driver_sql(_q.now).scalar_one()
        waiting = jobs.backlog(connection, sorted(owners)) if owners else []
    return Usable(
        name=database.name,
        revision=revision,
        initialised=installation is not None,
        owners=owners,
        backlog=_by_shard(waiting, now),
    )


def _by_shard(waiting: Iterable[jobs.Backlog], now: datetime) -> dict[int, ShardBacklog]:
    """All lanes of a shard together."""
    shards: dict[int, ShardBacklog] = {}
    for lane in waiting:
        age = 0.0 if lane.oldest_due_at is None else max(0.0, (now - lane.oldest_due_at).total_seconds())
        before = shards.get(lane.shard, ShardBacklog(ready=0, oldest_seconds=0.0))
        oldest = max(before.oldest_seconds, age)
        shards[lane.shard] = ShardBacklog(ready=before.ready + lane.ready, oldest_seconds=oldest)
    return shards
