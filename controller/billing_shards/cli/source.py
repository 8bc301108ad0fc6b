"""Which shard set a command works on: a manifest file, or the folders that are mounted into a pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from billing_shards import telemetry
from billing_shards.errors import InvalidInput
from billing_shards.settings import Manifest, ProcessSettings, ShardSetSpec
from billing_shards.shards.shardset import FolderSecrets, ManifestSecrets, Secrets, open_router
from billing_shards.shards.transactions import ShardRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A shard set, and where the values of its Secrets are."""

    name: str
    spec: ShardSetSpec
    secrets: Secrets

    @contextmanager
    def router(self, *, pool_size: int = 5) -> Iterator[ShardRouter]:
        """Open all its databases. Raises `DatabaseError`s and `InvalidInput`."""
        router = open_router(self.name, self.spec, self.secrets, pool_size=pool_size)
        try:
            yield router
        finally:
            router.close()


def find(manifest: Path | None) -> Source:
    """The shard set of a manifest, or of this pod where none is given. Raises `InvalidInput`."""
    telemetry.configure_logs("warning", as_json=False)
    if manifest is not None:
        read = Manifest.read(manifest)
        return Source(name=read.name, spec=read.spec, secrets=ManifestSecrets(read.secrets))
    own = settings()
    if not own.config_dir.is_dir():
        raise InvalidInput("--manifest", f"is needed outside a pod: there is no folder {own.config_dir}")
    name, spec = own.shard_set()
    return Source(name=name, spec=spec, secrets=FolderSecrets(own.secrets_dir))


def settings() -> ProcessSettings:
    """The process's own settings. Raises `InvalidInput` that names the variable."""
    try:
        return ProcessSettings()
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        variable = "BILLING_SHARDS_" + "_".join(str(part) for part in problem["loc"]).upper()
        raise InvalidInput(variable, problem["msg"]) from None
