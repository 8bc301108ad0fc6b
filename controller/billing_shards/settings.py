"""What a person sets: the spec of a `BillingShardSet`, and where a process finds the files it is given.

`ShardSetSpec` is the one model of the resource: the operator checks a resource with it, hands it to the pods as JSON in a
ConfigMap, and `billing-shards run --manifest` reads it from a file. It is read once at the start and passed on, never global.
Field names are camelCase outside and snake_case inside; durations carry their unit in their name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing_shards.errors import InvalidInput, InvalidSpec

API_GROUP = "billingshards.io"
API_VERSION = "v1alpha1"
KIND = "BillingShardSet"

SHARDS_MAX = 256
DATABASES_MAX = 32
LANES_MAX = 100

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_]{0,63}$")]
Weight = Annotated[int, Field(ge=1, le=100)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class _Model(BaseModel):
    """Frozen, strict about unknown fields, camelCase outside."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class SecretRef(_Model):
    """A Secret of the resource's own namespace."""

    name: Name


class TlsSpec(_Model):
    """How a database's certificate is checked. `verify` checks both CA and host name; there is no half-way mode."""

    mode: Literal["verify", "disabled"] = "verify"
    ca_secret: SecretRef | None = None
    """Holds `ca.crt` (PEM). Left out: the system's trust store."""
    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The name the certificate must be for, where it is not `host`."""


class DatabaseSpec(_Model):
    """One MySQL instance."""

    name: Name
    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65535)] = 3306
    database: SchemaName = "billing"
    credentials_secret: SecretRef
    """`username` and `password` of the application: no DDL, and no UPDATE or DELETE on the ledger."""
    schema_secret: SecretRef
    """`username` and `password` of the schema's owner, given to the schema-upgrade Job alone."""
    tls: TlsSpec = TlsSpec()
    weight: Annotated[int, Field(ge=0, le=1000)] = 1


class ShardRange(_Model):
    """Shards `from` to `to`, both included, live on `database`."""

    first: Annotated[int, Field(alias="from", ge=0, lt=SHARDS_MAX)]
    last: Annotated[int, Field(alias="to", ge=0, lt=SHARDS_MAX)]
    database: Name


class ClaimerSpec(_Model):
    """Claimer pods: how many, and how much each takes."""

    shards_per_deployment: Annotated[int, Field(ge=1, le=SHARDS_MAX)] = 16
    min_replicas: Annotated[int, Field(ge=0, le=100)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=100)] = 4
    target_backlog_age_seconds: Seconds = 60
    """A Deployment gains a replica while its oldest due job is older than this."""
    batch: Annotated[int, Field(ge=1, le=2000)] = 500
    """Jobs taken by one claim transaction, at the most."""
    workers: Annotated[int, Field(ge=1, le=10_000)] = 200
    """Charges under way at once in one process."""
    in_flight_max: Annotated[int, Field(ge=1, le=30_000)] | None = None
    """Jobs held claimed at once in one process: charging, or waiting for a worker or a settlement. Left out: three times
    `workers`, so that while they charge, the next jobs are claimed and the last ones settled."""
    renewal_weight: Weight = 3
    retry_weight: Weight = 1
    """The shares of the in-flight jobs that the common lanes are sure of, against each other and against the services' lanes."""
    lease_seconds: Annotated[int, Field(ge=5, le=3600)] = 300
    lost_leases_max: Annotated[int, Field(ge=1, le=100)] = 5
    """A job that loses its worker this often is set aside for review."""
    idle_poll_seconds: Annotated[float, Field(ge=0.05, le=60)] = 0.8
    """The longest a claimer sleeps between looks for due jobs."""
    finished_jobs_retention_seconds: Seconds = 7 * 86_400
    """How long a job is kept after it has finished. Its invoice, attempts, ledger entries and events stay."""

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not exceed maxReplicas")
        return self

    @property
    def in_flight(self) -> int:
        """`in_flight_max`, or what it is where it was left out."""
        return 3 * self.workers if self.in_flight_max is None else self.in_flight_max


class RetrySpec(_Model):
    """What follows a declined or unanswered charge."""

    delays_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=30)] = (
        300,
        1800,
        7200,
        43_200,
        86_400,
    )
    """Wait before the second, third, … attempt; the last one repeats until `attemptsMax`."""
    jitter: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    """Each wait is lengthened by a random share of itself up to this one."""
    attempts_max: Annotated[int, Field(ge=1, le=100)] = 6
    grace_seconds: Annotated[int, Field(ge=0, le=31_536_000)] = 14 * 86_400
    """No attempt later than this after the invoice fell due."""
    check_delays_seconds: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=30)] = (
        10, 60, 300, 1800, 3600, 14_400, 43_200, 86_400, 86_400, 86_400,
    )  # fmt: skip
    """Wait before each look at an attempt whose outcome is unknown or pending; after the last, review."""


class SmoothingSpec(_Model):
    """Charges of one instant are spread over a window, each subscription at a stable place in it."""

    window_seconds: Annotated[int, Field(ge=0, le=86_400)] = 3600


class BillingSpec(_Model):
    """Invoicing."""

    catch_up_periods_max: Annotated[int, Field(ge=1, le=1000)] = 12
    """A subscription that has missed more periods than this is held until a person says what becomes of them."""


class DunningSpec(_Model):
    """What becomes of a subscription that is not paid for. Beside the retries of `retry`, which go on by themselves."""

    notices_seconds: Annotated[tuple[Seconds, ...], Field(max_length=30)] = (86_400, 3 * 86_400, 7 * 86_400)
    """When, after it fell past due, the customer is told again (event `subscription.notice`)."""
    suspend_after_seconds: Seconds = 14 * 86_400
    """The grace: how long after it fell past due the service goes on."""
    suspend_when_given_up: bool = True
    """Suspend at once where an invoice is given up: after the last attempt, or a decline that no retry can mend."""
    cancel_after_seconds: Seconds = 60 * 86_400
    """How long after its suspension a subscription is canceled."""
    write_off: bool = True
    """When it is canceled, stop collecting its invoices, and book them as bad debt."""

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        if list(self.notices_seconds) != sorted(set(self.notices_seconds)):
            raise ValueError("noticesSeconds must ascend")
        return self


class BreakerSpec(_Model):
    """When a failing provider is left alone, and how it is tried again. Counted by each claimer process."""

    failures: Annotated[int, Field(ge=1, le=10_000)] = 20
    """Requests in a row that it did not answer, or answered with a failure of its own, after which nothing more is sent."""
    open_seconds: Annotated[float, Field(ge=1, le=3600)] = 30
    """For this long."""
    probes: Annotated[int, Field(ge=1, le=1000)] = 3
    """Then so many requests try it; when all are answered it is used as before, when one is not it is left alone again."""


class GatewaySpec(_Model):
    """A payment provider."""

    type: Literal["http", "stripe"] = "http"
    """The protocol it speaks: docs/gateway-protocol.md, or Stripe's own."""
    name: Name = "http"
    """Names the provider on attempts and in the ledger's clearing account."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=2048)]
    api_key_secret: SecretRef | None = None
    """Holds `apiKey`."""
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 30
    """For an answer, from the first byte sent to the last one read."""
    connect_timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 5
    read_timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 20
    """Between two bytes of an answer."""
    in_flight_max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Requests under way at once at it, of one claimer process. Left out: as many as its workers make."""
    requests_per_second_max: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Of one claimer process."""
    key_ttl_seconds: Annotated[int, Field(ge=3600)] = 86_400
    """How long the provider remembers an idempotency key. Nothing is resent later than this."""
    webhook_secret: SecretRef | None = None
    """Holds `webhookSecrets`, one a line: any of them may sign. Left out: its webhooks are refused."""
    webhook_tolerance_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """How far a webhook's time of signing may be from our clock when it is received, in either direction."""
    breaker: BreakerSpec = BreakerSpec()


class ServiceSpec(_Model):
    """A service with lanes of its own in the queue, so that it and the others cannot hold each other up."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@+/=-]{1,63}$")]
    """As subscriptions have it."""
    lane: Annotated[int, Field(ge=1, le=LANES_MAX)]
    """Names its lanes in the queue: one for renewals, one for retries. Never give it to another service."""
    gateway: Name | None = None
    """Which provider takes its charges: a name of `gateway` or `gateways`. Left out: `gateway`."""
    window_seconds: Annotated[int, Field(ge=0, le=86_400)] | None = None
    """Its own smoothing window. Left out: `smoothing`'s. A change moves nothing that is scheduled already."""
    renewal_weight: Weight = 3
    retry_weight: Weight = 1
    """As in `claimer`."""


class BrokerSpec(_Model):
    """The message broker that events are published to."""

    type: Literal["nats", "rabbitmq"]
    url: Annotated[str, Field(pattern=r"^(nats|tls|amqp|amqps)://[^\s@?#]+$", max_length=2048)]
    """`nats://` or `tls://` of NATS, `amqp://` or `amqps://` of RabbitMQ (the path is its virtual host). No user, no password."""
    credentials_secret: SecretRef | None = None
    """Holds `username` and `password`."""
    ca_secret: SecretRef | None = None
    """Holds `ca.crt` (PEM). Left out: the system's trust store."""
    prefix: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$")] = "billing"
    """NATS: subjects are `<prefix>.<shard>.<type>`."""
    stream: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,63}$")] = "BILLING"
    """NATS: the JetStream stream; made where it is missing."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """NATS: copies of a stream that is made."""
    exchange: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,63}$")] = "billing"
    """RabbitMQ: a durable topic exchange; made where it is missing. Routing keys are `<shard>.<type>`."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,63}$")] | None = None
    """RabbitMQ: a quorum queue for all events; made, and bound to the exchange, where it is missing. Left out: bind your own."""
    confirm_seconds: Annotated[float, Field(gt=0, le=60)] = 10
    """The longest wait for the broker's confirmation."""
    message_bytes_max: Annotated[int, Field(ge=1024, le=16_777_216)] = 1_048_576
    """A larger event is not sent: it blocks its subscription until a person has looked. No more than RabbitMQ takes, for it
    would close the channel."""

    @model_validator(mode="after")
    def _scheme(self) -> Self:
        wanted = ("nats://", "tls://") if self.type == "nats" else ("amqp://", "amqps://")
        if not self.url.startswith(wanted):
            raise ValueError(f"url must begin with {' or '.join(wanted)} for type {self.type}")
        return self


class OutboxSpec(_Model):
    """Events of what happened."""

    broker: BrokerSpec | None = None
    """Left out: events stay in the outbox, unsent."""
    retention_seconds: Seconds = 7 * 86_400
    """Published events are kept at least this long."""
    batch: Annotated[int, Field(ge=1, le=5000)] = 500
    """Events of one shard that are under way to the broker at once, at the most."""


class MigrationSpec(_Model):
    """How shards move when `shardMap` is edited."""

    approval: Literal["automatic", "manual"] = "manual"
    max_pause_milliseconds: Annotated[int, Field(ge=1, le=60_000)] = 200


class ShardSetSpec(_Model):
    """`spec` of a BillingShardSet."""

    shard_count: Annotated[int, Field(ge=1, le=SHARDS_MAX)] = 256
    databases: Annotated[tuple[DatabaseSpec, ...], Field(min_length=1, max_length=DATABASES_MAX)]
    shard_map: Annotated[tuple[ShardRange, ...], Field(min_length=1, max_length=SHARDS_MAX)] | None = None
    claimer: ClaimerSpec = ClaimerSpec()
    retry: RetrySpec = RetrySpec()
    smoothing: SmoothingSpec = SmoothingSpec()
    billing: BillingSpec = BillingSpec()
    dunning: DunningSpec = DunningSpec()
    gateway: GatewaySpec
    gateways: Annotated[tuple[GatewaySpec, ...], Field(max_length=16)] = ()
    """Further providers, for the services that name them."""
    services: Annotated[tuple[ServiceSpec, ...], Field(max_length=LANES_MAX)] = ()
    """Services that are treated apart. All others share the queue's common lanes and `gateway`."""
    outbox: OutboxSpec = OutboxSpec()
    migration: MigrationSpec = MigrationSpec()
    paused: bool = False
    """Nothing new is claimed or invoiced; what is under way is finished."""

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [database.name for database in self.databases]
        if len(set(names)) != len(names):
            raise ValueError("databases: each name must be given once")
        providers = [gateway.name for gateway in self.all_gateways]
        if len(set(providers)) != len(providers):
            raise ValueError("gateways: each name must be given once, and not be the name of spec.gateway")
        for field in ("name", "lane"):
            if len({getattr(service, field) for service in self.services}) != len(self.services):
                raise ValueError(f"services: each {field} must be given once")
        unknown = {service.gateway for service in self.services if service.gateway is not None} - set(providers)
        if unknown:
            raise ValueError(f"services: names gateway {min(unknown)!r}, which spec.gateways does not list")
        return self

    @property
    def all_gateways(self) -> tuple[GatewaySpec, ...]:
        """Every provider; the first is the one for services that name none."""
        return (self.gateway, *self.gateways)

    def database(self, name: str) -> DatabaseSpec:
        """The database of this name. Raises `InvalidSpec` where there is none."""
        for database in self.databases:
            if database.name == name:
                return database
        raise InvalidSpec("spec.shardMap", f"names database {name!r}, which spec.databases does not list")


class Credentials(_Model):
    """What a Secret holds for one user of one database. Its `repr` shows no password."""

    username: Annotated[str, Field(min_length=1)]
    password: Annotated[str, Field(repr=False)]


def parse_spec(spec: object) -> ShardSetSpec:
    """Check the `spec` of a resource. Raises `InvalidSpec` that names the first wrong field and the reason."""
    try:
        return ShardSetSpec.model_validate(spec)
    except ValidationError as error:
        raise _first_problem(error) from None  # the chained text would repeat the input


def _first_problem(error: ValidationError) -> InvalidSpec:
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = "spec"
    for part in problem["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}"
    return InvalidSpec(field, problem["msg"].removeprefix("Value error, "))


class Manifest(_Model):
    """A BillingShardSet and the Secrets that stand beside it in a file."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    name: str
    spec: ShardSetSpec
    secrets: dict[str, dict[str, str]] = Field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read the YAML documents of a file. Raises `InvalidSpec` or `InvalidInput`, each with the field."""
        try:
            documents = list(yaml.safe_load_all(path.read_text()))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidInput(str(path), f"cannot be read as YAML ({type(error).__name__})") from error
        sets = [document for document in documents if _kind(document) == KIND]
        if len(sets) != 1:
            raise InvalidInput(str(path), f"holds {len(sets)} documents of kind {KIND}, wants one")
        secrets = [document for document in documents if _kind(document) == "Secret"]
        return cls(
            name=_name(sets[0]),
            spec=parse_spec(sets[0].get("spec")),
            secrets={_name(document): _string_data(document) for document in secrets},
        )


def _kind(document: object) -> object:
    return document.get("kind") if isinstance(document, dict) else None


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidInput("metadata.name", f"is missing in a document of kind {document['kind']}")
    return name


def _string_data(secret: dict[str, Any]) -> dict[str, str]:
    """A Secret's texts. A message never repeats a value."""
    data = secret.get("stringData") or {}
    if not isinstance(data, dict):
        raise InvalidInput(f"secret {_name(secret)}", "stringData is no mapping")
    for key, value in data.items():
        if not isinstance(value, str):
            raise InvalidInput(f"secret {_name(secret)}", f"stringData.{key} is no text: quote it")
    return data


class ProcessSettings(BaseSettings):
    """Where a process in a pod finds its files, and what is its own. Read from `BILLING_SHARDS_*`."""

    model_config = SettingsConfigDict(env_prefix="BILLING_SHARDS_", frozen=True)

    config_dir: Path = Path("/etc/billing-shards/config")
    """The mounted ConfigMap: `shardset.json` = {"name": …, "spec": {…}}."""
    secrets_dir: Path = Path("/etc/billing-shards/secrets")
    """One folder a Secret, by the Secret's name. Reread when it changes; never an environment variable."""
    first_shard: int = 0
    last_shard: int = SHARDS_MAX - 1
    """Claimers: the range of shards this Deployment is for."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9464
    webhook_port: Annotated[int, Field(ge=0, le=65535)] = 9465
    """Where the housekeeper takes the providers' webhooks; 0: the system chooses."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    pod_name: str = "local"

    def shard_set(self) -> tuple[str, ShardSetSpec]:
        """Name and spec of the BillingShardSet this process works for. Raises `InvalidInput`."""
        path = self.config_dir / "shardset.json"
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidInput(str(path), f"cannot be read ({type(error).__name__})") from error
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            raise InvalidInput(str(path), "is no JSON object with name and spec")
        return document["name"], parse_spec(document.get("spec"))
