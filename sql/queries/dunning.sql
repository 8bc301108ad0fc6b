-- Subscriptions that are not paid for. Statuses are numbers: see sql/schema. Jobs have no index on their subscription: they are found
-- by the key that is computed from an invoice's period.

-- name: due_shards
-- A loose scan: one look into the index for each shard.
SELECT shard_id
FROM subscription FORCE INDEX (dunning)
WHERE shard_id IN %(shards)s AND next_dunning_at IS NOT NULL
GROUP BY shard_id
HAVING MIN(next_dunning_at) <= NOW(6)

-- name: due
SELECT id
FROM subscription FORCE INDEX (dunning)
WHERE shard_id = %(shard)s AND next_dunning_at <= %(now)s
ORDER BY next_dunning_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: unpaid_invoices
-- Open ones (1), and those that were given up (3).
SELECT id, subscription_id, charge_type, period_start, amount, currency, status
FROM invoice FORCE INDEX (period)
WHERE shard_id = %(shard)s AND subscription_id IN %(subscriptions)s AND status IN (1, 3)
ORDER BY subscription_id, period_start

-- name: jobs
-- Read, not locked: settlement locks a job before its subscription, and we the other way round.
-- An attempt that is to be canceled counts as one that failed: the customer did not complete it in time.
SELECT j.id, j.invoice_id, j.status, j.payment_method, j.due_at, j.attempt_open,
       j.attempt_no > j.attempt_open OR EXISTS (
         SELECT 1 FROM payment_attempt
         WHERE shard_id = j.shard_id AND job_id = j.id AND attempt_no = j.attempt_no AND outcome = 7)
FROM JSON_TABLE(%(keys)s, '$[*]' COLUMNS (idempotency_key CHAR(64) PATH '$[0]')) AS r
STRAIGHT_JOIN billing_job AS j FORCE INDEX (idempotency) ON j.shard_id = %(shard)s AND j.idempotency_key = UNHEX(r.idempotency_key)

-- name: lock_jobs
-- Those that nobody works on, and whose last attempt has a known outcome. Skipping locked ones, so that nobody waits for us.
SELECT id
FROM billing_job FORCE INDEX (PRIMARY)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND attempt_open = 0 AND status IN (0, 3, 4, 5)
FOR UPDATE SKIP LOCKED

-- name: take_method
-- What waits for a retry, for the customer, or was given up (3), is tried at once; a first attempt keeps its time, and what a person
-- set aside stays there. MySQL assigns from left to right: `status` is the old one until the last line.
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id             BIGINT UNSIGNED PATH '$[0]',
         payment_method VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[1]')) AS r
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = r.id
SET j.payment_method = r.payment_method,
    j.lane = IF(j.status <> 5 AND j.attempt_no > 0, j.lane | 1, j.lane),
    j.due_at = IF(j.status <> 5 AND j.attempt_no > 0, NOW(6), j.due_at),
    j.grace_until = IF(j.status IN (3, 4), GREATEST(j.grace_until, NOW(6) + INTERVAL %(grace_seconds)s SECOND), j.grace_until),
    j.updated_at = NOW(6),
    j.status = IF(j.status IN (3, 4), 0, j.status)

-- name: reopen_invoices
UPDATE invoice FORCE INDEX (PRIMARY) SET status = 1
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 3

-- name: stop_jobs
UPDATE billing_job FORCE INDEX (PRIMARY) SET status = 3, due_at = NOW(6), updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND attempt_open = 0 AND status IN (0, 3, 4, 5)

-- name: write_off_invoices
UPDATE invoice FORCE INDEX (PRIMARY) SET status = 4
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status IN (1, 3)

-- name: issued_for
-- The revenue accounts of invoices: the service that an invoice was issued for is its own, whatever the subscription's is by now.
SELECT e.invoice_id, e.credit_account
FROM JSON_TABLE(%(keys)s, '$[*]' COLUMNS (idempotency_key CHAR(64) PATH '$[0]')) AS r
STRAIGHT_JOIN ledger_entry AS e FORCE INDEX (idempotency)
  ON e.shard_id = %(shard)s AND e.idempotency_key = UNHEX(r.idempotency_key)
