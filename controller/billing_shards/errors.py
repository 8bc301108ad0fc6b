"""Every error this package raises on purpose, as one tree.

    BillingShardsError
    ├── InvalidInput                 a value given by a person or a file
    │   └── InvalidSpec              a field of a BillingShardSet
    ├── DatabaseError
    │   ├── DatabaseUnavailable
    │   ├── AccessDenied
    │   ├── TlsRefused
    │   ├── WrongDatabase
    │   ├── SchemaBehind
    │   └── SchemaTooNew
    ├── ShardError
    │   ├── NotOwner
    │   ├── ShardFenced
    │   └── ShardUnknown
    ├── TransactionFailed
    │   └── CommitUnknown
    ├── LeaseLost
    ├── NotFound
    ├── NotPossible
    ├── BrokerUnavailable
    ├── EventRefused
    ├── GatewayMisconfigured
    ├── WebhookRefused
    └── KubernetesError

Messages never hold a password, a bound SQL value or a payment method. Outcomes of a charge are values
(`payments.model.Outcome`), not errors: a decline is an ordinary day.
"""

from __future__ import annotations


class BillingShardsError(Exception):
    """The root of the tree; never raised itself."""


class InvalidInput(BillingShardsError):
    """A value given by a person or a file breaks a rule; nothing was changed."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class InvalidSpec(InvalidInput):
    """A field of a BillingShardSet (or a file that holds one) breaks a rule that the API server could not check."""


class DatabaseError(BillingShardsError):
    """A MySQL instance could not be used; `database` is its name in the BillingShardSet."""

    def __init__(self, database: str, reason: str) -> None:
        super().__init__(f"database {database}: {reason}")
        self.database = database
        self.reason = reason


class DatabaseUnavailable(DatabaseError):
    """The server cannot be reached, refuses connections or is shutting down. Trying again may help."""


class AccessDenied(DatabaseError):
    """The server is reached but refuses the user, the password or the schema."""


class TlsRefused(DatabaseError):
    """The server's certificate is not signed by the given CA, or is not for the given host name."""


class WrongDatabase(DatabaseError):
    """The database belongs to another BillingShardSet or program, or was set up with another number of shards."""


class SchemaBehind(DatabaseError):
    """The schema is missing or older than this release needs: run `billing-shards schema upgrade`."""


class SchemaTooNew(DatabaseError):
    """The schema was upgraded by a newer release than this one, which must not touch it."""


class ShardError(BillingShardsError):
    """A shard cannot be written here and now."""

    def __init__(self, shard: int, reason: str) -> None:
        super().__init__(f"shard {shard}: {reason}")
        self.shard = shard


class NotOwner(ShardError):
    """The database asked does not own the shard; `moved_to` names the one that does, where it is known."""

    def __init__(self, shard: int, database: str, moved_to: str | None) -> None:
        super().__init__(shard, f"not owned by database {database}" + (f", moved to {moved_to}" if moved_to else ""))
        self.moved_to = moved_to


class ShardFenced(ShardError):
    """The shard is being handed over; its writers wait for the new owner."""


class ShardUnknown(ShardError):
    """No database of the shard map is the owner of this shard."""


class TransactionFailed(BillingShardsError):
    """A transaction was rolled back as often as it was allowed to be run again (deadlocks, lock waits, lost connections)."""


class CommitUnknown(TransactionFailed):
    """The answer to COMMIT was lost and the database could not be asked what became of it."""


class LeaseLost(BillingShardsError):
    """Jobs were finished under a lease that is no longer theirs: nothing of those jobs was written."""

    def __init__(self, shard: int, jobs: frozenset[int]) -> None:
        super().__init__(f"shard {shard}: lease lost on jobs {sorted(jobs)[:10]} ({len(jobs)} in all)")
        self.shard = shard
        self.jobs = jobs


class NotFound(BillingShardsError):
    """The thing named by its id is on no shard."""


class NotPossible(BillingShardsError):
    """What was asked for cannot be done in the state that the thing is in; nothing was changed."""


class BrokerUnavailable(BillingShardsError):
    """The broker of the outbox is not reached, refuses us, or did not confirm in time: events stay where they are."""


class EventRefused(BillingShardsError):
    """One event cannot be published for what it is (`outbox.model.Problem`), while the broker takes others."""

    def __init__(self, problem: str, details: str) -> None:
        super().__init__(f"{problem}: {details}")
        self.problem = problem
        self.details = details


class GatewayMisconfigured(BillingShardsError):
    """The provider refuses us as a whole (wrong key, unknown account): charging stops until a person has looked."""


class WebhookRefused(BillingShardsError):
    """A webhook is not proved to be its provider's, now: unsigned, signed by somebody else, or long ago. Nothing was stored."""


class KubernetesError(BillingShardsError):
    """The Kubernetes API refused a call or did not answer it; `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
