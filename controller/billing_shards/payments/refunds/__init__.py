"""Refunds: money given back of an invoice that was paid. See docs/refunds.md."""
