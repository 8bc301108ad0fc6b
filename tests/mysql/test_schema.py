"""Schema upgrades forward only, by one process at a time, run again after any end; and the application's rights."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any
from uuid import uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from billing_shards import db, schema
from billing_shards.db import Database, open_database, translated
from billing_shards.errors import (
    AccessDenied,
    DatabaseError,
    DatabaseUnavailable,
    SchemaBehind,
    SchemaTooNew,
    WrongDatabase,
)
from billing_shards.settings import Credentials
from hack.mysql import MySQLServer
from tests.mysql.shard_set import OWNER, Site

PATIENCE_SECONDS = 120
SENTINEL = "sentinel-7f3a"


@pytest.fixture
def owned(empty_site: Site) -> Iterator[Database]:
    """An empty schema, as its owner."""
    databases = empty_site.owned()
    yield databases["a"]
    for database in databases.values():
        database.close()


def rows(database: Database, query: str, **params: Any) -> Sequence[Any]:
    with translated(database.name), database.engine.connect() as connection:
        return connection.exec_driver_sql(query, params).all()


def execute(database: Database, statement: str, **params: Any) -> None:
    with translated(database.name), database.engine.begin() as connection:
        connection.exec_driver_sql(statement, params)


def tables(database: Database) -> list[str]:
    return [name for (name,) in rows(database, "SHOW TABLES")]


def definitions(database: Database) -> dict[str, str]:
    return {name: rows(database, f"SHOW CREATE TABLE `{name}`")[0][1] for name in tables(database)}


# Upgrades


def test_an_empty_schema_is_behind_until_it_is_upgraded(owned: Database) -> None:
    assert schema.current_revision(owned) is None
    with pytest.raises(SchemaBehind, match=r"^database a: has revision none, wants \d{4}$"):
        schema.check(owned)
    assert schema.upgrade(owned) == schema.expected_revision()
    assert schema.current_revision(owned) == schema.expected_revision()
    schema.check(owned)
    assert {"installation", "shard_owner", "billing_job", "ledger_entry", "outbox"} <= set(tables(owned))


def test_a_second_upgrade_changes_nothing(owned: Database) -> None:
    schema.upgrade(owned)
    before = definitions(owned)
    execute(owned, "INSERT INTO shard_sequence VALUES (1, 'id', 7)")
    assert schema.upgrade(owned) == schema.expected_revision()
    assert definitions(owned) == before
    assert rows(owned, "SELECT * FROM shard_sequence") == [(1, "id", 7)]


@pytest.mark.parametrize("upgraded", [False, True])
def test_a_revision_of_a_newer_release_is_not_touched(owned: Database, upgraded: bool) -> None:
    """Also where an older release would find tables to create."""
    if upgraded:
        schema.upgrade(owned)
        execute(owned, "UPDATE alembic_version SET version_num = '9999'")
    else:
        execute(owned, "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        execute(owned, "INSERT INTO alembic_version VALUES ('9999')")
    before = definitions(owned)
    for step in (schema.upgrade, schema.check):
        with pytest.raises(SchemaTooNew, match=r"^database a: has revision 9999, which this release does not know$"):
            step(owned)
    assert definitions(owned) == before
    assert schema.current_revision(owned) == "9999"


def test_a_schema_of_another_program_is_not_touched(owned: Database) -> None:
    """Its `invoice` would have been taken for ours."""
    execute(owned, "CREATE TABLE invoice (number INT PRIMARY KEY)")
    with pytest.raises(WrongDatabase, match=r"^database a: holds tables of another program \(invoice\)"):
        schema.upgrade(owned)
    assert tables(owned) == ["invoice"]


def test_a_schema_whose_name_needs_quoting_is_upgraded_and_granted(
    mysql_servers: Sequence[MySQLServer], user: Credentials
) -> None:
    site = Site.create(mysql_servers, f"billing-{uuid4().hex[:8]}-eu")
    with _all_of(site) as databases:
        schema.upgrade(databases["a"])
        schema.grant_application(databases["a"], user)
        with _as(site, user) as application:
            schema.check(application)
    site.drop()


@contextmanager
def _all_of(site: Site) -> Iterator[dict[str, Database]]:
    databases = site.owned()
    yield databases
    for database in databases.values():
        database.close()


# Several at once, and ends in the middle

_UPGRADE = """
import json, os, signal, sys
from sqlalchemy import event
from billing_shards import schema
from billing_shards.settings import parse_spec
from billing_shards.shards import shardset
from billing_shards.shards.shardset import ManifestSecrets

site = json.load(sys.stdin)
database = shardset.open_databases(parse_spec(site["spec"]), ManifestSecrets(site["secrets"]), role="schema")["a"]
changes = 0

def count(connection, cursor, statement, *_):
    global changes
    changes += statement.lstrip().upper().startswith(("CREATE TABLE", "INSERT INTO ALEMBIC_VERSION"))
    if 0 < changes == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(database.engine, "after_cursor_execute", count)
print(schema.upgrade(database))
"""


@contextmanager
def upgrading(site: Site, *, killed_after: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that upgrades database a; it kills itself after so many of its changes."""
    command = [sys.executable, "-c", _UPGRADE, str(killed_after)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            json.dump({"spec": site.document(), "secrets": site.secrets_by_name}, process.stdin)
            process.stdin.close()
            yield process
        finally:
            process.kill()


def said(pipe: IO[str] | None) -> str:
    assert pipe is not None
    return pipe.read()


def lock_name(database: Database) -> str:
    return f"billing-shards:{rows(database, 'SELECT DATABASE()')[0][0]}"


def waiting_for_the_lock(server: MySQLServer) -> int:
    with server.client() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'")
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_two_processes_at_once_upgrade_once(empty_site: Site, owned: Database) -> None:
    """Both are made to wait at the lock, and let go together."""
    (server, _) = empty_site.servers
    with ExitStack() as stack:
        with server.client(database=empty_site.database) as holder, holder.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name(owned),))
            assert cursor.fetchone() == (1,)
            processes = [stack.enter_context(upgrading(empty_site)) for _ in range(2)]
            until(lambda: waiting_for_the_lock(server) == 2)
            assert tables(owned) == []
        for process in processes:
            assert process.wait(PATIENCE_SECONDS) == 0, said(process.stderr)
            assert said(process.stdout) == f"{schema.expected_revision()}\n"
    schema.check(owned)


def test_a_lock_that_is_not_freed_is_an_error_and_not_a_hung_process(
    empty_site: Site, owned: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_LOCK_SECONDS", 1)
    with empty_site.servers[0].client() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (lock_name(owned),))
        with pytest.raises(DatabaseUnavailable, match="another schema upgrade held its lock for 1 s"):
            schema.upgrade(owned)
    assert tables(owned) == []
    schema.upgrade(owned)


def test_the_lock_is_waited_for_no_longer_than_any_answer() -> None:
    """Otherwise the wait would end as a lost connection."""
    assert schema._LOCK_SECONDS < db._ANSWER_SECONDS


@pytest.mark.parametrize("changes", [1, 5, 10])
def test_an_upgrade_that_was_killed_in_the_middle_is_finished_by_the_next(
    empty_site: Site, upgraded_site: Site, owned: Database, changes: int
) -> None:
    with upgrading(empty_site, killed_after=changes) as process:
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL, said(process.stderr)
    assert len(tables(owned)) == changes
    assert schema.current_revision(owned) is None
    with pytest.raises(SchemaBehind):
        schema.check(owned)
    schema.upgrade(owned)
    with _all_of(upgraded_site) as databases:
        assert definitions(owned) == definitions(databases["a"])


def test_a_connection_that_is_lost_in_the_middle_is_an_unavailable_database(empty_site: Site, owned: Database) -> None:
    """The error is the loss itself, not that the lock could not be given back."""
    (server, _) = empty_site.servers

    def cut(connection: Any, _: Any, statement: str, *__: Any) -> None:
        if "billing_job" in statement and statement.lstrip().startswith("CREATE TABLE"):
            number = connection.connection.thread_id()
            with server.client(autocommit=True) as root, root.cursor() as cursor:
                cursor.execute(f"KILL {number}")

    event.listen(owned.engine, "before_cursor_execute", cut)
    with pytest.raises(DatabaseUnavailable, match=r"^database a: not reachable"):
        schema.upgrade(owned)
    event.remove(owned.engine, "before_cursor_execute", cut)
    assert "invoice" in tables(owned)
    assert "billing_job" not in tables(owned)
    assert schema.upgrade(owned) == schema.expected_revision()


# What cannot be used


def refusal(database: Database) -> DatabaseError:
    with pytest.raises(DatabaseError) as caught:
        schema.check(database)
    database.close()
    return caught.value


def opened(site: Site, who: Credentials, **changes: Any) -> Database:
    spec = site.spec().database("a").model_copy(update=changes)
    return open_database(spec, lambda: who, ca=site.servers[0].ca_file.read_text)


def test_a_database_that_cannot_be_used_says_which_and_why_and_no_password(empty_site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    root = Credentials(username="root", password=empty_site.servers[0].root_password)
    wrong = Credentials(username=OWNER.username, password=SENTINEL)
    nobody = Credentials(username="nobody", password=SENTINEL)
    cases: list[tuple[Database, type[DatabaseError], str]] = [
        (opened(empty_site, wrong), AccessDenied, "database a: access denied (MySQL error 1045): check user name, password"),
        (opened(empty_site, nobody), AccessDenied, "database a: access denied (MySQL error 1045)"),
        (opened(empty_site, OWNER, database="elsewhere"), AccessDenied, "database a: access denied (MySQL error 1044)"),
        (opened(empty_site, root, database="elsewhere"), AccessDenied, "database a: access denied (MySQL error 1049)"),
        (opened(empty_site, OWNER, port=free), DatabaseUnavailable, "database a: not reachable (MySQL error 2003)"),
        (opened(empty_site, OWNER), SchemaBehind, f"database a: has revision none, wants {schema.expected_revision()}"),
    ]
    for database, kind, message in cases:
        error = refusal(database)
        assert type(error) is kind
        assert str(error).startswith(message)
        for password in (SENTINEL, OWNER.password, root.password):
            assert password not in str(error)


# The application's rights


@contextmanager
def _user(servers: Sequence[MySQLServer], name: str = "") -> Iterator[Credentials]:
    """A user that is not made yet, and is dropped at the end."""
    who = Credentials(username=name or f"app_{uuid4().hex[:8]}", password=SENTINEL)
    yield who
    for server in servers:
        with server.client(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("DROP USER IF EXISTS %s@'%%'", (who.username,))


@pytest.fixture
def user(mysql_servers: Sequence[MySQLServer]) -> Iterator[Credentials]:
    """An application's user for this test alone, not made yet."""
    with _user(mysql_servers) as who:
        yield who


@pytest.fixture(scope="module")
def owner(upgraded_site: Site) -> Iterator[Database]:
    """An upgraded schema, as its owner."""
    with _all_of(upgraded_site) as databases:
        yield databases["a"]


@pytest.fixture(scope="module")
def application(upgraded_site: Site, owner: Database) -> Iterator[Database]:
    """An upgraded schema, as an application's user sees it."""
    with _user(upgraded_site.servers) as who:
        schema.grant_application(owner, who)
        with _as(upgraded_site, who) as database:
            yield database


@contextmanager
def _as(site: Site, who: Credentials) -> Iterator[Database]:
    database = opened(site, who)
    yield database
    database.close()


LEDGER_ENTRY = (
    "INSERT INTO ledger_entry (shard_id, id, debit_account, credit_account, amount, currency, kind, invoice_id, idempotency_key,"
    " created_at) VALUES (1, 1, 'a:1', 'b:1', 5, 'USD', 1, 1, REPEAT('k', 32), NOW(6))"
)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (id INT)",
        "ALTER TABLE billing_job ADD COLUMN more INT",
        "CREATE INDEX more ON billing_job (amount)",
        "DROP TABLE outbox",
        "TRUNCATE TABLE outbox",
        "UPDATE ledger_entry SET amount = 1",
        "DELETE FROM ledger_entry",
        "REPLACE INTO ledger_entry SELECT * FROM ledger_entry",
        "UPDATE installation SET shard_count = 1",
        "DELETE FROM installation",
        "UPDATE alembic_version SET version_num = '0000'",
        "SELECT * FROM mysql.user",
    ],
)
def test_the_application_may_not(application: Database, statement: str) -> None:
    with pytest.raises(AccessDenied, match=r"MySQL error 1(142|044)"):
        execute(application, statement)


def test_the_application_may_all_that_it_needs(upgraded_site: Site, application: Database) -> None:
    """It reads everything, books and never changes what is booked, and works freely on the rest."""
    for table in tables(application):
        rows(application, f"SELECT * FROM `{table}`")
    execute(application, LEDGER_ENTRY)
    execute(application, "INSERT INTO shard_sequence VALUES (1, 'id', 1)")
    execute(application, "UPDATE shard_sequence SET next_value = 2")
    execute(application, "DELETE FROM shard_sequence")
    schema.check(application)
    upgraded_site.empty()


def test_the_application_has_rights_on_nothing_but_the_tables(application: Database) -> None:
    (name, user) = rows(application, "SELECT DATABASE(), SUBSTRING_INDEX(CURRENT_USER(), '@', 1)")[0]
    grants = [grant for (grant,) in rows(application, "SHOW GRANTS")]
    assert grants[0] == f"GRANT USAGE ON *.* TO `{user}`@`%`"
    assert len(grants) == 1 + len(tables(application))
    assert all(f" ON `{name}`.`" in grant and "GRANT OPTION" not in grant for grant in grants[1:])


def test_a_new_password_is_for_new_connections(upgraded_site: Site, owner: Database, user: Credentials) -> None:
    """A pod that still holds the old one works on until its connections end."""
    schema.grant_application(owner, user)
    new = Credentials(username=user.username, password="new")
    with _as(upgraded_site, user) as database, database.engine.connect() as before:
        schema.grant_application(owner, new)
        before.exec_driver_sql("SELECT * FROM shard_owner")
        assert type(refusal(opened(upgraded_site, user))) is AccessDenied
        with _as(upgraded_site, new) as after:
            schema.check(after)


def test_granting_again_changes_nothing(upgraded_site: Site, owner: Database, user: Credentials) -> None:
    schema.grant_application(owner, user)
    with _as(upgraded_site, user) as database:
        before = rows(database, "SHOW GRANTS")
        schema.grant_application(owner, user)
        assert rows(database, "SHOW GRANTS") == before


@pytest.mark.parametrize("password", ["o'brien", 'a"b`c', "100%s%(user)s", "back\\slash", "ümläut€", " spaces ", ""])
def test_any_password_is_taken_as_it_is(upgraded_site: Site, owner: Database, user: Credentials, password: str) -> None:
    who = Credentials(username=user.username, password=password)
    schema.grant_application(owner, who)
    with _as(upgraded_site, who) as database:
        schema.check(database)


def test_a_user_name_is_never_taken_for_sql(upgraded_site: Site, owner: Database) -> None:
    with _user(upgraded_site.servers, "o'b%s`\"@x") as who:
        schema.grant_application(owner, who)
        with _as(upgraded_site, who) as database:
            schema.check(database)


def test_who_may_not_grant_is_refused_without_showing_the_password(application: Database) -> None:
    """SQLAlchemy's own text carries the statement, and would carry its values."""
    with pytest.raises(AccessDenied, match=r"^database a: ") as caught:
        schema.grant_application(application, Credentials(username="other", password=f"new-{SENTINEL}"))
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert SENTINEL not in f"{caught.value} {caught.value.__cause__}"
