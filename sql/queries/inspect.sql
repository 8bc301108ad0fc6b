-- What a person looks at. The number of queries never depends on the number of shards, subscriptions or invoices.

-- name: now
SELECT NOW(6)

-- name: jobs
-- The claim index alone: finished jobs, however many, are not looked at.
SELECT shard_id, SUM(status = 0 AND due_at <= NOW(6)) AS due, MIN(IF(status = 0 AND due_at <= NOW(6), due_at, NULL)) AS oldest_due,
       SUM(status = 1) AS in_work, SUM(status = 0 AND due_at > NOW(6)) AS later, SUM(status = 4) AS customer,
       SUM(status = 5) AS review
FROM billing_job
WHERE shard_id IN %(shards)s AND lane IN %(lanes)s AND status IN (0, 1, 4, 5)
GROUP BY shard_id

-- name: not_invoiced
SELECT shard_id, COUNT(*) AS not_invoiced
FROM subscription
WHERE shard_id IN %(shards)s AND next_invoice_at <= NOW(6)
GROUP BY shard_id

-- name: unsent
SELECT shard_id, COUNT(*) AS unsent
FROM outbox
WHERE shard_id IN %(shards)s AND sent_at IS NULL
GROUP BY shard_id

-- name: invoice
SELECT i.shard_id, i.id, i.subscription_id, i.charge_type, i.period_start, i.period_end, i.amount, i.currency, i.status,
       i.due_at, i.issued_at, NOW(6) AS now
FROM invoice AS i
WHERE i.shard_id = %(shard)s AND i.id = %(id)s

-- name: invoice_of_day
-- The latest one, or the one whose period holds the day.
SELECT i.shard_id, i.id, i.subscription_id, i.charge_type, i.period_start, i.period_end, i.amount, i.currency, i.status,
       i.due_at, i.issued_at, NOW(6) AS now
FROM invoice AS i
WHERE i.shard_id = %(shard)s AND i.subscription_id = %(subscription)s AND i.charge_type = 1
  AND i.period_start <= COALESCE(%(day)s, i.period_start) AND i.period_end > COALESCE(%(day)s, i.period_start)
ORDER BY i.period_start DESC
LIMIT 1

-- name: subscription
SELECT id, customer_id, service, amount, currency, status, start_date, time_zone, next_period, next_invoice_at, created_at
FROM subscription
WHERE shard_id = %(shard)s AND id = %(subscription)s

-- name: job
-- By its key: the table is too narrow for an index on invoice_id.
SELECT id, lane, status, due_at, attempt_no, attempt_open, checks, lost_leases, grace_until, updated_at
FROM billing_job
WHERE shard_id = %(shard)s AND idempotency_key = %(key)s

-- name: job_of_attempt
SELECT job_id FROM payment_attempt WHERE shard_id = %(shard)s AND idempotency_key = %(key)s

-- name: attempts
SELECT attempt_no, provider, provider_ref, amount, currency, outcome, code, created_at, finished_at
FROM payment_attempt
WHERE shard_id = %(shard)s AND job_id = %(job)s
ORDER BY attempt_no

-- name: entries
SELECT id, debit_account, credit_account, amount, currency, kind, created_at
FROM ledger_entry FORCE INDEX (debit)
WHERE shard_id = %(shard)s AND debit_account = %(account)s AND invoice_id = %(invoice)s
UNION ALL
SELECT id, debit_account, credit_account, amount, currency, kind, created_at
FROM ledger_entry FORCE INDEX (credit)
WHERE shard_id = %(shard)s AND credit_account = %(account)s AND invoice_id = %(invoice)s
ORDER BY id

-- name: refunds
SELECT id, amount, currency, source, status, provider, provider_ref, code, created_at, finished_at
FROM refund FORCE INDEX (request)
WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s
ORDER BY created_at, id

-- name: events
-- In one pass over the shard's events: telling stories is no reason for an index that every event would pay for.
SELECT id, type, payload, created_at, sent_at
FROM outbox
WHERE shard_id = %(shard)s AND subscription_id = %(subscription)s AND JSON_EXTRACT(payload, '$.invoice') = %(invoice)s
ORDER BY id
