"""Schema upgrades: forward only, by Alembic, from the numbered files of `sql/schema`.

Two processes may upgrade at once: a named lock of the server lets one through, and the other finds nothing to do. A database
that a newer release has upgraded is refused. MySQL commits each statement that changes a table by itself, so an upgrade may end
half-way: every statement of a revision must be able to run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from billing_shards.db import SQL, Database, queries, translated
from billing_shards.errors import DatabaseUnavailable, SchemaBehind, SchemaTooNew, WrongDatabase
from billing_shards.settings import Credentials

_q = queries("schema")
_LOCK_SECONDS = 90  # less than a connection waits for any answer


def expected_revision() -> str:
    """The revision that this release needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise AssertionError("sql/schema holds no revision")
    return head


def current_revision(database: Database) -> str | None:
    """The revision of the database; None where it was never upgraded. Raises `DatabaseError`s."""
    with translated(database.name), database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def check(database: Database) -> None:
    """Raise `SchemaBehind` or `SchemaTooNew` unless the database has just the revision that this release needs."""
    _compare(database, current_revision(database))


def _compare(database: Database, revision: str | None) -> None:
    if revision == expected_revision():
        return
    if revision is not None and revision not in _known_revisions():
        raise SchemaTooNew(database.name, f"has revision {revision}, which this release does not know")
    raise SchemaBehind(database.name, f"has revision {revision or 'none'}, wants {expected_revision()}")


def upgrade(database: Database) -> str:
    """Bring the database to `expected_revision` and return it. Raises `SchemaTooNew`, `WrongDatabase`, `DatabaseError`s."""
    with translated(database.name), database.engine.connect() as connection, _lock(database, connection):
        found = MigrationContext.configure(connection).get_current_revision()
        if found is not None and found not in _known_revisions():
            raise SchemaTooNew(database.name, f"has revision {found}, which this release does not know")
        others = connection.exec_driver_sql(_q.tables_of_others).scalars().all()
        if others:
            raise WrongDatabase(
                database.name, f"holds tables of another program ({', '.join(others)}): give us a schema of our own"
            )
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    return expected_revision()


def run_file(connection: Connection, path: Path) -> None:
    """Run the statements of an SQL file of a revision."""
    text = "\n".join(line.split("--")[0] for line in path.read_text().splitlines())
    for statement in filter(str.strip, text.split(";")):
        connection.exec_driver_sql(statement)


def grant_application(database: Database, application: Credentials) -> None:
    """Make the application's user, or give it this password, with no more rights than it needs.

    It may not change the schema, nor update or delete a ledger entry. Run as the schema's owner after each upgrade.
    """
    with translated(database.name), database.engine.connect() as connection:
        user = {"user": application.username, "password": application.password}
        connection.exec_driver_sql(_q.create_user, user)
        connection.exec_driver_sql(_q.set_password, user)
        schema = connection.exec_driver_sql("SELECT DATABASE()").scalar_one()
        quote = database.engine.dialect.identifier_preparer.quote_identifier
        for table, rights in connection.exec_driver_sql(_q.table_rights).all():
            target = f"{quote(schema)}.{quote(table)}".replace("%", "%%")
            connection.exec_driver_sql(_q.grant.replace("{rights}", rights).replace("{table}", target), user)
        connection.commit()


@contextmanager
def _lock(database: Database, connection: Connection) -> Iterator[None]:
    if connection.exec_driver_sql(_q.lock, {"seconds": _LOCK_SECONDS}).scalar_one() != 1:
        raise DatabaseUnavailable(database.name, f"another schema upgrade held its lock for {_LOCK_SECONDS} s")
    try:
        yield
    finally:
        if not connection.invalidated:  # the server frees the lock of a lost connection
            connection.exec_driver_sql(_q.unlock)


def _known_revisions() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SQL / "schema" / "alembic"))  # apart: every .py beside a revision is run as one
    config.set_main_option("version_locations", str(SQL / "schema"))
    config.set_main_option("path_separator", "os")
    return config
