"""The rules, in the order they are reported.

Those of `SHARD_RULES` are queries of the same name in `sql/queries/audit.sql`, run on each shard. They lean on each other as
little as they can, so that one wrong row breaks the rule that names it.
"""

from __future__ import annotations

from billing_shards.audit.model import Rule

ONE_OWNER = Rule(name="one_owner", says="each shard has exactly one owner over all databases")
ROWS_ON_OWNER = Rule(name="rows_on_owner", says="rows of a shard are only on its owner")
NEXT_INVOICE = Rule(name="next_invoice", says="a subscription's next invoice is due when its next period begins")
DUE_PERIODS = Rule(name="due_periods", says="no period that has begun waits long for its invoice")
LEDGER_ZERO = Rule(name="ledger_zero", says="receivables, revenue, refunds and clearing sum to zero in each currency")
CHARGE_ATTEMPT = Rule(name="charge_attempt", says="each charge at the provider matches one attempt, its amount and currency")
DOUBLE_CHARGES = Rule(name="double_charges", says="no invoice was charged twice at the provider")
MISSING_CHARGES = Rule(name="missing_charges", says="each succeeded attempt is in the provider's list")

OWNER_RULES = (ONE_OWNER, ROWS_ON_OWNER)

SHARD_RULES = tuple(
    Rule(name=name, says=says)
    for name, says in (
        ("right_shard", "each subscription is on the shard that its id hashes to"),
        ("periods", "each period up to the next one has exactly one invoice, and no other period has one"),
        ("invoice_subscription", "each invoice belongs to a subscription"),
        ("invoice_job", "each invoice has exactly one job, for its amount, or is final and its job deleted"),
        ("job_invoice", "each job belongs to an invoice"),
        ("issue_entry", "each invoice has exactly one ledger entry of its issue, for its amount"),
        ("payment_success", "each paid invoice has exactly one succeeded attempt, and no other invoice has one"),
        ("payment_entry", "each paid invoice has exactly one ledger entry of a payment that was not reversed, no other has one"),
        ("reversal_entry", "each reversed attempt has its ledger entry, and no other attempt has one"),
        ("refund_charge", "each refund is of an attempt that took the money, at its provider"),
        ("refund_sum", "no invoice is refunded by more than was paid"),
        ("refund_entry", "each refund that succeeded has its ledger entry, for its amount, and no other has one"),
        ("write_off_entry", "each written-off invoice has exactly one ledger entry of that, and no other invoice has one"),
        ("entry_invoice", "each ledger entry belongs to an invoice"),
        ("receivable", "each subscription owes the sum of its unpaid invoices"),
        ("ledger_numbers", "ledger entries are numbered without a gap"),
        ("outbox_numbers", "events are numbered without a gap"),
        ("outbox_held", "each event that is set aside waits behind one of its subscription that the broker does not take"),
        ("counters", "no counter is behind the numbers in use"),
        ("job_state", "each job is in a lane and a state that agree with its invoice"),
        ("leases", "each job in work has a lease that has not ended long ago"),
        ("attempt_job", "each attempt belongs to a job, or to a final invoice whose job is deleted, for its amount"),
        ("attempt_numbers", "the attempts of each job are numbered without a gap"),
        ("open_attempts", "no job has an attempt of unknown outcome but the one it is waiting for"),
        ("job_keys", "each job's idempotency key is computed from its period"),
        ("attempt_keys", "each attempt's idempotency key is computed from its job's"),
        ("entry_keys", "each ledger entry's idempotency key is computed from what it is booked for"),
    )
)

PROVIDER_RULES = (CHARGE_ATTEMPT, DOUBLE_CHARGES, MISSING_CHARGES)

RULES = (*OWNER_RULES, *SHARD_RULES, DUE_PERIODS, NEXT_INVOICE, LEDGER_ZERO, *PROVIDER_RULES)
