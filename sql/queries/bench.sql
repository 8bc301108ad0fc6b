-- Synthetic due jobs, spread over the shards of one database.

-- name: fill_invoices
INSERT INTO invoice (shard_id, id, subscription_id, charge_type, period_start, period_end, amount, currency, status, due_at, issued_at)
WITH RECURSIVE n (i) AS (SELECT %(first)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(first)s + %(count)s)
SELECT JSON_EXTRACT(%(shards)s, CONCAT('$[', i MOD JSON_LENGTH(%(shards)s), ']')), i + 1, CONCAT('sub-', LPAD(i, 8, '0')), 1,
       '2026-01-01', '2026-02-01', 990, 'USD', 1, '2026-01-01', '2026-01-01'
FROM n

-- name: fill_jobs
INSERT INTO billing_job (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, payment_method,
                         idempotency_key, grace_until, created_at, updated_at)
WITH RECURSIVE n (i) AS (SELECT %(first)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(first)s + %(count)s)
SELECT JSON_EXTRACT(%(shards)s, CONCAT('$[', i MOD JSON_LENGTH(%(shards)s), ']')), i + 1, 0, 0, '2026-01-01',
       CONCAT('sub-', LPAD(i, 8, '0')), i + 1, 990, 'USD', CONCAT('pm_', LPAD(i, 8, '0')), UNHEX(SHA2(i, 256)),
       '2036-01-01', '2026-01-01', '2026-01-01'
FROM n

-- name: drained
SELECT 'jobs succeeded', COUNT(*) FROM billing_job WHERE status = 2
UNION ALL SELECT 'invoices paid', COUNT(*) FROM invoice WHERE status = 2
UNION ALL SELECT 'attempts succeeded', COUNT(*) FROM payment_attempt WHERE outcome = 1
UNION ALL SELECT 'ledger entries', COUNT(*) FROM ledger_entry
UNION ALL SELECT 'events', COUNT(*) FROM outbox
