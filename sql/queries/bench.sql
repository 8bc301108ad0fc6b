-- Synthetic jobs, spread over the shards of one database: `burst` in a row on one shard.

-- name: fill_invoices
INSERT INTO invoice (shard_id, id, subscription_id, charge_type, period_start, period_end, amount, currency, status, due_at, issued_at)
WITH RECURSIVE n (i) AS (SELECT %(start)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(start)s + %(count)s)
SELECT JSON_EXTRACT(%(shards)s, CONCAT('$[', FLOOR(i / %(burst)s) MOD JSON_LENGTH(%(shards)s), ']')), %(first)s + i + 1,
       CONCAT('sub-', LPAD(%(first)s + i, 8, '0')), 1, '2026-01-01', '2026-02-01', 990, 'USD', 1, '2026-01-01', '2026-01-01'
FROM n

-- name: fill_jobs
INSERT INTO billing_job (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, payment_method,
                         idempotency_key, grace_until, created_at, updated_at)
WITH RECURSIVE n (i) AS (SELECT %(start)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(start)s + %(count)s)
SELECT JSON_EXTRACT(%(shards)s, CONCAT('$[', FLOOR(i / %(burst)s) MOD JSON_LENGTH(%(shards)s), ']')), %(first)s + i + 1,
       %(lane)s, 0, %(first_due)s + INTERVAL FLOOR(i / %(burst)s) * %(gap_us)s MICROSECOND, CONCAT('sub-', LPAD(%(first)s + i, 8, '0')),
       %(first)s + i + 1, 990, 'USD', CONCAT('pm_', LPAD(%(first)s + i, 8, '0')), UNHEX(SHA2(%(first)s + i, 256)),
       '2036-01-01', '2026-01-01', '2026-01-01'
FROM n

-- name: settled
SELECT 'jobs succeeded', COUNT(*) FROM billing_job WHERE status = 2
UNION ALL SELECT 'invoices paid', COUNT(*) FROM invoice WHERE status = 2
UNION ALL SELECT 'attempts succeeded', COUNT(*) FROM payment_attempt WHERE outcome = 1
UNION ALL SELECT 'ledger entries', COUNT(*) FROM ledger_entry
UNION ALL SELECT 'events', COUNT(*) FROM outbox

-- name: complete
-- A job of which nothing but the queue is to know.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = 2, attempt_open = 0, lost_leases = 0, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1 AND lease_token = %(token)s

-- name: fill_past_and_future
-- What a database holds besides what is due: finished jobs (status 2) of the year before, or ready ones (0) of the year to come.
INSERT INTO billing_job (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, payment_method, attempt_no,
                         lease_token, idempotency_key, grace_until, created_at, updated_at)
WITH RECURSIVE n (i) AS (SELECT %(start)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(start)s + %(count)s)
SELECT %(shard)s, i, 0, %(status)s, NOW(6) + INTERVAL (i MOD 31536000) * %(sign)s SECOND + INTERVAL %(sign)s DAY, CONCAT('sub-', LPAD(i, 8, '0')),
       i, 990, 'USD', CONCAT('pm_', LPAD(i, 8, '0')), %(status)s DIV 2, %(status)s DIV 2, UNHEX(SHA2(CONCAT(%(shard)s, '-', i), 256)),
       '2036-01-01', '2026-01-01', '2026-01-01'
FROM n

-- name: fill_subscriptions
INSERT INTO subscription (shard_id, id, customer_id, service, amount, currency, interval_unit, interval_count, start_date, time_zone,
                          payment_method, status, next_period, next_invoice_at, created_at, updated_at)
WITH RECURSIVE n (i) AS (SELECT %(start)s UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %(start)s + %(count)s)
SELECT i MOD %(shards)s, CONCAT('sub-', LPAD(i, 8, '0')), CONCAT('cus-', LPAD(i, 8, '0')), 'video', 990, 'USD', 3, 1, DATE(%(midnight)s), 'UTC',
       CONCAT('pm_', LPAD(i, 8, '0')), 1, 0, %(midnight)s, %(midnight)s, %(midnight)s
FROM n

-- name: due_per_second
SELECT TIMESTAMPDIFF(SECOND, %(midnight)s, due_at) AS second_after, COUNT(*) FROM billing_job GROUP BY second_after
