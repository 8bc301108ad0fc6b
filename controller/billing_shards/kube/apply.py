"""Does what `decide` says, one action after the other. Each may be done twice, or only in part: the next look sees what is."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import structlog
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from billing_shards.db import error_code, open_database, translated
from billing_shards.errors import DatabaseError
from billing_shards.kube.api import KubeApi
from billing_shards.kube.databases import ANSWER_SECONDS
from billing_shards.kube.model import Action, Apply, Create, Delete, Desired, Initialise, Key, Memory
from billing_shards.kube.objects import version_of
from billing_shards.kube.observe import Observer
from billing_shards.settings import ShardSetSpec
from billing_shards.shards import shardset, store

_log = structlog.get_logger(__name__)


class Applier:
    """Has no state of its own; safe to use from several threads."""

    def __init__(self, api: KubeApi, observer: Observer) -> None:
        self._api = api
        self._observer = observer

    def do(self, desired: Desired, spec: ShardSetSpec, actions: tuple[Action, ...], memory: Memory) -> Memory:
        """Do all actions in order. Raises `KubernetesError`, `DatabaseError`s at the first that fails."""
        versions: dict[Key, str] = dict(memory.applied)
        for action in actions:
            match action:
                case Apply():
                    versions[action.key] = version_of(self._api.apply(action.manifest))
                    _log.info("applied", **_who(desired), kind=action.key[0], object=action.key[1])
                case Create(manifest=manifest):
                    if self._api.create(manifest) is not None:
                        _log.info("created", **_who(desired), kind=manifest["kind"], object=manifest["metadata"]["name"])
                case Delete(kind=kind, name=name):
                    self._api.delete(kind, desired.namespace, name)
                    versions.pop((kind, name), None)
                    _log.info("deleted", **_who(desired), kind=kind, object=name)
                case Initialise():
                    self._initialise(desired, spec, action)
                case _:
                    assert_never(action)
        return replace(memory, applied=versions)

    def _initialise(self, desired: Desired, spec: ShardSetSpec, action: Initialise) -> None:
        """One transaction, guarded by the installation's primary key: whoever comes second changes nothing."""
        secrets = self._observer.secrets(desired.namespace, spec)
        chosen = spec.database(action.database)
        authority = chosen.tls.ca_secret
        database = open_database(
            chosen,
            lambda: shardset.credentials(chosen, secrets),
            ca=lambda: None if authority is None else secrets.value(authority.name, "ca.crt"),
            pool_size=1,
            answer_seconds=ANSWER_SECONDS,
        )
        try:
            with translated(chosen.name), database.engine.connect() as connection:
                store.initialise(
                    connection,
                    shard_set=desired.name,
                    shard_count=spec.shard_count,
                    database=chosen.name,
                    shards=action.shards,
                )
        except IntegrityError:
            _log.info("already_initialised", **_who(desired), database=chosen.name)
        except SQLAlchemyError as error:
            raise DatabaseError(chosen.name, f"could not be set up (MySQL error {error_code(error)})") from error
        else:
            _log.info("initialised", **_who(desired), database=chosen.name, shards=len(action.shards))
        finally:
            database.close()


def _who(desired: Desired) -> dict[str, str]:
    return {"namespace": desired.namespace, "shardset": desired.name}
