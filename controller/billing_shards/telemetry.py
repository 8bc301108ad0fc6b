"""Metrics and logs of every process.

Metrics are prometheus-client's, named in base units; labels are never customers. Logs are JSON by structlog: an event name in
snake_case, then fields; a traceback is part of its line. Nothing of a Secret is ever given to either.
"""

from __future__ import annotations

import logging
import sys

import structlog
from prometheus_client import Counter, Gauge, Histogram
from structlog.tracebacks import ExceptionDictTransformer

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

TRANSACTION_RERUNS = Counter("billing_shards_transaction_reruns_total", "Transactions rolled back and run again.", ["reason"])
for _reason in ("deadlock", "lock_wait", "connection_lost"):
    TRANSACTION_RERUNS.labels(_reason)

JOBS_CLAIMED = Counter("billing_shards_jobs_claimed_total", "Jobs taken under a lease.", ["lane"])
BATCH_SECONDS = Histogram(
    "billing_shards_batch_seconds", "Length of a batch's transaction, COMMIT included.", ["step"], buckets=_SECONDS
)
OUTCOMES = Counter("billing_shards_charge_outcomes_total", "Outcomes of attempts, as settled.", ["outcome"])
LEASES_LOST = Counter("billing_shards_leases_lost_total", "Jobs finished too late: their lease had ended.")
JOBS_REAPED = Counter("billing_shards_jobs_reaped_total", "Jobs taken back from workers that were lost.", ["to"])
JOBS_PURGED = Counter("billing_shards_jobs_purged_total", "Finished jobs deleted after their retention.")
SUBSCRIPTIONS_HELD = Counter(
    "billing_shards_subscriptions_held_total", "Subscriptions that missed too many periods to be invoiced without a word."
)
DUNNING_STEPS = Counter("billing_shards_dunning_steps_total", "Steps of dunning, by what they do.", ["step"])
GATEWAY_SECONDS = Histogram(
    "billing_shards_gateway_seconds", "Time until the provider answered, or did not.", ["operation"], buckets=_SECONDS
)
GATEWAY_ANSWERS = Counter(
    "billing_shards_gateway_answers_total",
    "What became of requests: an outcome, a decline's class, or the cause of there being neither.",
    ["provider", "operation", "answer"],
)
BREAKER_OPEN = Gauge("billing_shards_breaker_open", "1 while a failing provider is left alone or tried again.", ["provider"])
CHARGES_KEPT_BACK = Counter(
    "billing_shards_gateway_requests_kept_back_total",
    "Requests that were not sent to a provider that fails or is full.",
    ["provider"],
)
IN_FLIGHT = Gauge("billing_shards_jobs_in_flight", "Jobs this process holds claimed.")
JOBS_DUE = Gauge("billing_shards_jobs_due", "Ready jobs that are due.", ["shard", "lane"])
OLDEST_DUE = Gauge(
    "billing_shards_oldest_due_timestamp_seconds",
    "When the oldest due job fell due; 0: none is due.",
    ["shard", "lane"],
)
INVOICES_ISSUED = Counter("billing_shards_invoices_issued_total", "Invoices written by the scheduler.")
OUTBOX_UNSENT = Gauge("billing_shards_outbox_unsent", "Events not published yet.", ["shard"])
OUTBOX_OLDEST = Gauge(
    "billing_shards_outbox_oldest_timestamp_seconds",
    "When the oldest event that could be sent was written; 0: there is none.",
    ["shard"],
)
OUTBOX_BLOCKED = Gauge(
    "billing_shards_outbox_blocked_subscriptions", "Subscriptions whose next event the broker does not take.", ["shard"]
)
EVENTS_PUBLISHED = Counter("billing_shards_events_published_total", "Events that the broker confirmed.")
EVENTS_REFUSED = Counter("billing_shards_events_refused_total", "Events that cannot be published for what they are.", ["problem"])
EVENTS_PURGED = Counter("billing_shards_events_purged_total", "Events deleted after their retention.")
BROKER_CONNECTED = Gauge("billing_shards_broker_connected", "Whether this process is connected to the broker of the outbox.")
REFUNDS = Counter("billing_shards_refunds_total", "Answers to refunds, by what became of the refund.", ["status"])
WEBHOOKS = Counter("billing_shards_webhooks_total", "Webhooks received, by how they were answered.", ["provider", "answer"])
WEBHOOKS_WAITING = Gauge("billing_shards_webhooks_waiting", "Stored webhooks that are not done with.", ["shard"])
WEBHOOKS_APPLIED = Counter("billing_shards_webhooks_applied_total", "Stored webhooks done with, by what they led to.", ["result"])
LOOP_ERRORS = Counter("billing_shards_loop_errors_total", "Rounds of a background loop that failed.", ["loop"])


def configure_logs(level: str = "info", *, as_json: bool = True) -> None:
    """Send structlog, and the standard library's loggers, to stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without the frames' variables, which structlog shows by default: passwords are among them.
    tracebacks = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
    plain = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
    render: list[structlog.typing.Processor] = [tracebacks, structlog.processors.JSONRenderer()] if as_json else [plain]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))  # libraries: only what matters
