"""A shard set over two real servers, as tests of anything above the schema need it.

The two schemas are upgraded once a session; each test finds them empty of rows, with its shards placed anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Connection, event

from billing_shards import schema
from billing_shards.accounts import ledger
from billing_shards.db import Database
from billing_shards.jobs.model import job_key
from billing_shards.outbox import events
from billing_shards.settings import Credentials, ShardSetSpec, parse_spec
from billing_shards.shards import shardset
from billing_shards.shards.model import shard_of
from billing_shards.shards.shardset import ManifestSecrets
from billing_shards.shards.transactions import ShardRouter, ShardTransaction
from hack.mysql import MySQLServer

NAME = "main"
NAMES = ("a", "b")
APPLICATION = Credentials(username="billing_app", password="app-secret")
OWNER = Credentials(username="billing_owner", password="owner-secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One schema of the same name on each of two servers: not upgraded, not set up, owned by `OWNER`."""

    servers: Sequence[MySQLServer]
    database: str

    @classmethod
    def create(cls, servers: Sequence[MySQLServer], database: str) -> Site:
        """Create the schemas and their owner, which may also make the application's user."""
        for server in servers:
            with server.client(autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE `{database}`")
                cursor.execute("CREATE USER IF NOT EXISTS %s@'%%' IDENTIFIED BY %s", (OWNER.username, OWNER.password))
                cursor.execute(f"GRANT ALL ON `{database}`.* TO %s@'%%' WITH GRANT OPTION", (OWNER.username,))
                cursor.execute("GRANT CREATE USER ON *.* TO %s@'%%'", (OWNER.username,))
        return cls(servers=servers, database=database)

    def drop(self) -> None:
        for server in self.servers:
            with server.client(autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS `{self.database}`")

    @property
    def secrets_by_name(self) -> dict[str, dict[str, str]]:
        secrets = {
            "app": {"username": APPLICATION.username, "password": APPLICATION.password},
            "schema": {"username": OWNER.username, "password": OWNER.password},
        }
        authorities = {f"ca-{n}": {"ca.crt": s.ca_file.read_text()} for n, s in zip(NAMES, self.servers, strict=True)}
        return {**secrets, **authorities}

    @property
    def secrets(self) -> ManifestSecrets:
        return ManifestSecrets(self.secrets_by_name)

    def document(self, **changes: Any) -> dict[str, Any]:
        """`spec` of a BillingShardSet over these databases; `changes` are fields by their outside names."""
        databases = [
            {
                "name": name,
                "host": server.host,
                "port": server.port,
                "database": self.database,
                "credentialsSecret": {"name": "app"},
                "schemaSecret": {"name": "schema"},
                "tls": {"mode": "verify", "caSecret": {"name": f"ca-{name}"}},
            }
            for name, server in zip(NAMES, self.servers, strict=True)
        ]
        return {"shardCount": 8, "databases": databases, "gateway": {"url": "http://127.0.0.1:9"}, **changes}

    def spec(self, **changes: Any) -> ShardSetSpec:
        return parse_spec(self.document(**changes))

    def owned(self) -> dict[str, Database]:
        """Pools as the schema's owner, by name. The caller closes them."""
        return shardset.open_databases(self.spec(), self.secrets, role="schema", pool_size=20)

    def upgrade(self) -> None:
        """Apply the schema and let the application in."""
        databases = self.owned()
        for database in databases.values():
            schema.upgrade(database)
            schema.grant_application(database, APPLICATION)
            database.close()

    def empty(self) -> None:
        """Delete every row that a test may have left, as root: by then nobody else is connected."""
        for server in self.servers:
            with server.client(database=self.database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 20")
                cursor.execute("SHOW TABLES")
                tables = [name for (name,) in cursor.fetchall() if name != "alembic_version"]
                for table in tables:
                    cursor.execute(f"DELETE FROM `{table}`")
                connection.commit()


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob:
    """What `ShardSet.add_due_job` wrote."""

    shard: int
    job: int
    invoice: int
    subscription: str
    key: bytes


class ShardSet:
    """Databases that are set up, the router of the application over them, and the owner's own connections."""

    def __init__(self, site: Site, spec: ShardSetSpec) -> None:
        self.site = site
        self.spec = spec
        self.name = NAME
        self.secrets = site.secrets
        self.owners: dict[str, Database] = site.owned()
        shardset.set_up(NAME, spec, self.owners)
        self._clock: float | None = None
        self.router: ShardRouter = shardset.open_router(NAME, spec, self.secrets, pool_size=20)

    def close(self) -> None:
        for database in (*self.router.databases.values(), *self.owners.values()):
            database.close()

    @property
    def shards(self) -> range:
        return range(self.spec.shard_count)

    def shard_of(self, key: str) -> int:
        return shard_of(key, self.spec.shard_count)

    def manifest(self, path: Path, **changes: Any) -> Path:
        """Write the BillingShardSet and its Secrets, as `billing-shards run --manifest` reads them."""
        shown = {**self.spec.model_dump(mode="json", by_alias=True, exclude_none=True), **changes}
        resource = {"apiVersion": "billingshards.io/v1alpha1", "kind": "BillingShardSet", "metadata": {"name": NAME}}
        secrets = [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
            for name, data in self.site.secrets_by_name.items()
        ]
        path.write_text(yaml.safe_dump_all([{**resource, "spec": shown}, *secrets]))
        return path

    @contextmanager
    def owner(self, shard: int) -> Iterator[Connection]:
        """A connection as the schema's owner to the database that has the shard; committed at the end."""
        database = self.owners[self.router.owner(shard).name]
        with database.engine.begin() as connection:
            yield connection

    def rows(self, shard: int, query: str, **params: Any) -> Sequence[Any]:
        """Rows of a query as the schema's owner; `%(shard)s` is filled in."""
        with self.owner(shard) as connection:
            return connection.exec_driver_sql(query, {"shard": shard, **params}).all()

    def change(self, shard: int, statement: str, **params: Any) -> int:
        """Tamper with rows as the schema's owner; `%(shard)s` is filled in. The number of rows found."""
        with self.owner(shard) as connection:
            return connection.exec_driver_sql(statement, {"shard": shard, **params}).rowcount

    def count(self, table: str, where: str = "TRUE") -> int:
        """Rows of a table on all databases."""
        total = 0
        for database in self.owners.values():
            with database.engine.begin() as connection:
                total += connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table} WHERE {where}").scalar_one()
        return total

    def insert(self, shard: int, table: str, **columns: Any) -> None:
        """One row of a table, as the schema's owner."""
        names = ", ".join(["shard_id", *columns])
        values = ", ".join(["%(shard)s", *(f"%({name})s" for name in columns)])
        self.change(shard, f"INSERT INTO {table} ({names}) VALUES ({values})", **columns)

    def explain(self, shard: int, query: str, **params: Any) -> list[dict[str, Any]]:
        """The rows of a traditional EXPLAIN of a named query, after ANALYZE TABLE of all tables."""
        database = self.owners[self.router.owner(shard).name]
        with database.engine.connect() as connection:
            tables = [row[0] for row in connection.exec_driver_sql("SHOW TABLES")]
            connection.exec_driver_sql(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {', '.join(tables)}")
            connection.exec_driver_sql("SET SESSION explain_format = 'TRADITIONAL'")
            found = connection.exec_driver_sql(f"EXPLAIN {query}", {"shard": shard, **params})
            rows = [dict(row._mapping) for row in found]
            connection.exec_driver_sql("SET SESSION explain_format = DEFAULT")
            return rows

    def set_clock(self, now: datetime) -> None:
        """Virtual time: from now on, every connection of the router has this NOW(6), which stands still."""
        if self._clock is None:
            for database in self.router.databases.values():
                event.listen(database.engine, "checkout", self._set_clock_of)
        self._clock = now.replace(tzinfo=now.tzinfo or UTC).timestamp()

    def _set_clock_of(self, connection: Any, *_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TIMESTAMP = %s", (self._clock,))

    def add_subscription(self, id: str, **columns: Any) -> int:  # noqa: A002
        """A subscription as its table has it, by default monthly and due at once; its shard."""
        shard = self.shard_of(id)
        row: dict[str, Any] = {
            "customer_id": f"customer-of-{id}",
            "service": "video",
            "amount": 990,
            "currency": "USD",
            "interval_unit": 3,
            "interval_count": 1,
            "start_date": date(2024, 1, 31),
            "time_zone": "UTC",
            "payment_method": "pm_ok",
            "status": 1,
            "next_period": 0,
            "next_invoice_at": datetime(2024, 1, 31),
            "created_at": datetime(2024, 1, 1),
            "updated_at": datetime(2024, 1, 1),
            **columns,
        }
        self.insert(shard, "subscription", id=id, **row)
        return shard

    def add_due_job(
        self,
        subscription: str,
        *,
        period_start: date = date(2024, 1, 31),
        overdue_seconds: float = 60,
        payment_method: str = "pm_ok",
        amount: int = 990,
        currency: str = "USD",
        **job: Any,
    ) -> DueJob:
        """All that the scheduler would have written for one period, its job due `overdue_seconds` ago by the server.

        The subscription is added where it is missing. `job` are columns of billing_job that shall be otherwise.
        """
        shard = self.shard_of(subscription)
        if not self.rows(shard, "SELECT 1 FROM subscription WHERE shard_id = %(shard)s AND id = %(id)s", id=subscription):
            self.add_subscription(
                subscription,
                amount=amount,
                currency=currency,
                payment_method=payment_method,
                start_date=period_start,
                next_period=1,
                next_invoice_at=None,
            )
        key = job_key(subscription, period_start, 1)

        def body(transaction: ShardTransaction) -> DueJob:
            number = transaction.take("id", 2)
            now: datetime = transaction.read("SELECT NOW(6)")[0][0]
            due_at = now - timedelta(seconds=overdue_seconds)
            what = {"subscription_id": subscription, "amount": amount, "currency": currency}
            period_end = period_start + timedelta(days=30)
            invoice = {
                **what,
                "id": number,
                "charge_type": 1,
                "period_start": period_start,
                "period_end": period_end,
                "status": 1,
                "due_at": due_at,
                "issued_at": now,
            }
            row = {
                **what,
                "id": number + 1,
                "lane": 0,
                "status": 0,
                "due_at": due_at,
                "invoice_id": number,
                "payment_method": payment_method,
                "idempotency_key": key,
                "grace_until": due_at + timedelta(days=14),
                "created_at": now,
                "updated_at": now,
                **job,
            }
            _insert(transaction, "invoice", invoice)
            _insert(transaction, "billing_job", row)
            first = transaction.take_many({"event": 1, "ledger": 1})
            entry = ledger.invoice_issued(
                invoice=number, subscription=subscription, service="video", amount=amount, currency=currency, job_key=key
            )
            ledger.book(transaction, first["ledger"], [entry])
            period = {"period_start": period_start.isoformat(), "period_end": period_end.isoformat()}
            payload = {"invoice": number, "amount": amount, "currency": currency, **period}
            issued = events.Event(type="invoice.issued", subscription=subscription, payload=payload)
            events.write(transaction, first["event"], [issued])
            return DueJob(shard=shard, job=number + 1, invoice=number, subscription=subscription, key=key)

        return self.router.run(shard, body)


def _insert(transaction: ShardTransaction, table: str, row: Mapping[str, Any]) -> None:
    names, values = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    statement = f"INSERT INTO {table} (shard_id, {names}) VALUES (%(shard)s, {values})"
    transaction.write(statement, row, table=table, keys=[(row["id"],)])


def pretty(rows: Sequence[Mapping[str, Any]]) -> str:
    """EXPLAIN rows for the message of a failed assertion."""
    return json.dumps([dict(row) for row in rows], indent=1, default=str)
