"""Which modules are mutated, and which tests answer for each."""

from __future__ import annotations

TARGETS: dict[str, tuple[str, ...]] = {
    "jobs.decide": ("test_jobs_decide", "test_rule_mutants"),
    "payments.decide": ("test_payment_decide", "test_payment_mutants"),
    "payments.breaker": ("test_breaker", "test_rule_mutants"),
    "payments.refunds.decide": ("test_refund_decide",),
    "payments.webhooks.decide": ("test_webhook_decide", "test_rule_mutants"),
    "billing.decide": ("test_plan",),
    "billing.dunning": ("test_dunning",),
    "billing.periods": ("test_periods", "test_period_mutants"),
    "billing.smoothing": ("test_smoothing",),
    "billing.state": ("test_terms",),
    "billing.terms": ("test_terms",),
    "outbox.decide": ("test_outbox_decide", "test_rule_mutants"),
    "kube.decide": ("test_kube_decide", "test_kube_findings"),
}
"""Modules of billing_shards, and files of tests/unit."""
