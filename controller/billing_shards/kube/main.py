"""The operator's process: `billing-shards-controller`. Takes all settings from `BILLING_SHARDS_*`.

One replica, replaced by Recreate: Kopf's peering would pause a process on notice, which is no lock, and where two of them do
run for a moment (a node cut off), every step they take is one that may be taken twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import kopf
import structlog
from prometheus_client import start_http_server
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing_shards import schema
from billing_shards.kube.api import KubeApi
from billing_shards.kube.handlers import Handlers
from billing_shards.kube.model import Release
from billing_shards.kube.observe import Observer
from billing_shards.kube.round import Rounds
from billing_shards.settings import API_GROUP
from billing_shards.telemetry import configure_logs

_log = structlog.get_logger(__name__)
_DATABASE_THREADS = 64


class ControllerSettings(BaseSettings):
    """How the operator was installed. Lists are separated by commas."""

    model_config = SettingsConfigDict(env_prefix="BILLING_SHARDS_", frozen=True)

    namespaces: str = ""
    """Namespaces to watch. None: the whole cluster."""
    image: str
    """What claimers, the housekeeper and schema upgrades run."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: str = ""
    pod_resources: str = "{}"
    """`resources` of every pod's container, as JSON."""
    probe_port: Annotated[int, Field(ge=1, le=65535)] = 8080
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9464
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Resources looked at at once."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    pod_name: str = "controller"

    def release(self) -> Release:
        """What to run."""
        return Release(
            image=self.image,
            revision=schema.expected_revision(),
            pull_policy=self.image_pull_policy,
            pull_secrets=_split(self.image_pull_secrets),
            resources=json.loads(self.pod_resources),
        )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf's own settings. Each is here because its default is one of Kopf's traps."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{API_GROUP}/controller"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=API_GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=API_GROUP, ignored_fields=["spec"])
    settings.posting.loggers = False  # only what we post ourselves becomes an Event
    settings.posting.reporting_component = "billing-shards-controller"
    settings.posting.event_name_prefix = "billing-shards-"
    settings.peering.standalone = True
    settings.scanning.disabled = True  # no rights on namespaces and definitions; the liveness probe sees what is missed
    settings.watching.server_timeout = 300  # a watch that hangs without a word ends
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.execution.default_backoff = 5  # a round that raised is tried again soon
    settings.process.ultimate_exiting_timeout = 25
    return settings


async def operate(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT, or until one of Kopf's own tasks has died."""
    namespaces = _split(settings.namespaces)
    api = KubeApi.connect()
    with (
        ThreadPoolExecutor(_DATABASE_THREADS, thread_name_prefix="database") as databases,
        ThreadPoolExecutor(settings.workers + 1, thread_name_prefix="round") as workers,
    ):
        rounds = Rounds(api, Observer(api, databases), settings.release())
        registry = kopf.OperatorRegistry()
        Handlers(rounds, api, workers, namespaces).register(registry)
        identity: Any = settings.pod_name  # Kopf would ask for the name of the user, and ours has none
        await kopf.operator(
            identity=identity,
            registry=registry,
            settings=kopf_settings(),
            namespaces=namespaces,
            clusterwide=not namespaces,
            liveness_endpoint=f"http://0.0.0.0:{settings.probe_port}/healthz",
        )


def main() -> int:
    """Entry point of `billing-shards-controller`; the exit code. A crash is logged, with its traceback, as one line."""
    settings = ControllerSettings()
    configure_logs(settings.log_level)
    _quiet_kopf()
    start_http_server(settings.metrics_port)
    _log.info("controller_started", namespaces=settings.namespaces or "all", image=settings.image)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(operate(settings))
    except Exception:  # noqa: BLE001  the last resort: the traceback goes into the log, the exit code to Kubernetes
        _log.exception("controller_crashed")
        return 1
    _log.info("controller_stopped")
    return 0


def _quiet_kopf() -> None:
    """Warnings and tracebacks of Kopf are logged. At DEBUG it would log whole objects."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
