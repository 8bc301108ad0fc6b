-- Webhooks: received, waiting, done.

-- name: store
-- What is there already stays as it is: the provider sends until it is answered, and sometimes again.
INSERT INTO webhook
  (shard_id, provider, event_id, kind, reference, provider_ref, amount, currency, code, body, status, result, due_at, received_at,
   applied_at)
VALUES
  (%(shard)s, %(provider)s, %(event_id)s, %(kind)s, %(reference)s, %(provider_ref)s, %(amount)s, %(currency)s, %(code)s, %(body)s,
   IF(%(result)s IS NULL, 0, 1), %(result)s,
   IF(%(result)s IS NULL, NOW(6), NOW(6) + INTERVAL %(kept_seconds)s SECOND), NOW(6), IF(%(result)s IS NULL, NULL, NOW(6)))
ON DUPLICATE KEY UPDATE tries = tries

-- name: due_shards
-- A loose scan: one look into the index for each shard.
SELECT shard_id
FROM webhook FORCE INDEX (due)
WHERE shard_id IN %(shards)s AND status = 0
GROUP BY shard_id
HAVING MIN(due_at) <= NOW(6)

-- name: due
SELECT provider, event_id, kind, reference, amount, currency, code, tries
FROM webhook FORCE INDEX (due)
WHERE shard_id = %(shard)s AND status = 0 AND due_at <= NOW(6)
ORDER BY due_at, provider, event_id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: finish
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         provider     VARCHAR(63)  CHARACTER SET ascii COLLATE ascii_bin PATH '$[0]',
         event_id     VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[1]',
         result       VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin PATH '$[2]',
         wait_seconds DOUBLE       PATH '$[3]')) AS r
STRAIGHT_JOIN webhook AS w ON w.shard_id = %(shard)s AND w.provider = r.provider AND w.event_id = r.event_id
SET w.status = (r.result IS NOT NULL), w.result = r.result, w.tries = w.tries + 1,
    w.due_at = NOW(6) + INTERVAL r.wait_seconds * 1000000 MICROSECOND, w.applied_at = IF(r.result IS NULL, NULL, NOW(6))

-- name: purgeable_shards
SELECT shard_id
FROM webhook FORCE INDEX (due)
WHERE shard_id IN %(shards)s AND status = 1
GROUP BY shard_id
HAVING MIN(due_at) <= NOW(6)

-- name: purgeable
SELECT provider, event_id
FROM webhook FORCE INDEX (due)
WHERE shard_id = %(shard)s AND status = 1 AND due_at <= NOW(6)
ORDER BY due_at, provider, event_id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: purge
DELETE /*+ INDEX(webhook PRIMARY) */ FROM webhook WHERE shard_id = %(shard)s AND (provider, event_id) IN %(keys)s AND status = 1

-- name: count_waiting
SELECT shard_id, COUNT(*) FROM webhook WHERE shard_id IN %(shards)s AND status = 0 GROUP BY shard_id

-- name: invoices
-- Whose they are, and what their jobs' keys follow from. Not locked: jobs are locked before invoices, as settlements do it.
-- The service is the one they were issued for, whatever the subscription's is by now.
SELECT i.id, i.subscription_id, i.period_start, i.charge_type, SUBSTRING(e.credit_account, LENGTH('revenue:') + 1), s.payment_method
FROM invoice AS i
JOIN subscription AS s ON s.shard_id = i.shard_id AND s.id = i.subscription_id
JOIN ledger_entry AS e
  ON e.shard_id = i.shard_id
  AND e.idempotency_key = UNHEX(SHA2(CONCAT(
        UNHEX(SHA2(CONCAT(i.subscription_id, '|', i.period_start, '|', i.charge_type), 256)), 'issued'), 256))
WHERE i.shard_id = %(shard)s AND i.id IN %(ids)s

-- name: lock_jobs
-- By their keys, however few there are in the shard: another index would lock jobs that are none of these.
SELECT id, idempotency_key, status
FROM billing_job FORCE INDEX (idempotency)
WHERE shard_id = %(shard)s AND idempotency_key IN %(keys)s
ORDER BY idempotency_key
FOR UPDATE

-- name: lock_invoices
SELECT id, status FROM invoice FORCE INDEX (PRIMARY) WHERE shard_id = %(shard)s AND id IN %(ids)s ORDER BY id FOR UPDATE

-- name: attempts
-- All attempts at the jobs of these first attempts' keys: a finished job may be deleted already.
SELECT f.idempotency_key, t.job_id, t.attempt_no, t.provider, t.provider_ref, t.amount, t.currency, t.outcome
FROM payment_attempt AS f FORCE INDEX (idempotency)
JOIN payment_attempt AS t FORCE INDEX (PRIMARY) ON t.shard_id = f.shard_id AND t.job_id = f.job_id
WHERE f.shard_id = %(shard)s AND f.idempotency_key IN %(first_keys)s

-- name: refunds
-- What may have been given back, and how much of it will turn out by itself: not what is in review (5).
SELECT invoice_id, CAST(SUM(amount) AS SIGNED), SUM(status NOT IN (2, 3, 5))
FROM refund FORCE INDEX (request)
WHERE shard_id = %(shard)s AND invoice_id IN %(ids)s AND status <> 3
GROUP BY invoice_id

-- name: ask_jobs
-- The look that a webhook leads to does not bring the review nearer; looks at an attempt that is opened again are counted anew. Jobs in
-- work, or finished, are not touched.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = 0, lane = lane | 1, due_at = NOW(6), checks = IF(attempt_open, checks - (checks > 0), 0), attempt_open = 1,
    updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status IN (0, 4, 5)

-- name: reopen_attempts
UPDATE payment_attempt FORCE INDEX (PRIMARY) SET outcome = 5, finished_at = NULL
WHERE shard_id = %(shard)s AND (job_id, attempt_no) IN %(attempts)s

-- name: reverse_attempt
UPDATE payment_attempt SET outcome = 6, code = %(code)s
WHERE shard_id = %(shard)s AND job_id = %(job)s AND attempt_no = %(attempt_no)s AND outcome = 1

-- name: reopen_invoice
UPDATE invoice SET status = 1 WHERE shard_id = %(shard)s AND id = %(invoice)s AND status = 2

-- name: reopen_job
-- A fresh attempt, with a grace period of its own, by what the customer pays with today. The job of long ago was deleted: it is made
-- again as it was.
INSERT INTO billing_job
  (shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, payment_method, attempt_no, idempotency_key,
   grace_until, created_at, updated_at)
VALUES
  (%(shard)s, %(job)s, %(lane)s, %(status)s, NOW(6) + INTERVAL %(seconds)s * 1000000 MICROSECOND, %(subscription)s, %(invoice)s,
   %(amount)s, %(currency)s, %(payment_method)s, %(attempt_no)s, %(key)s, NOW(6) + INTERVAL %(grace_seconds)s SECOND, NOW(6), NOW(6))
  AS fresh
ON DUPLICATE KEY UPDATE
  status = fresh.status, lane = billing_job.lane | 1, due_at = fresh.due_at, payment_method = fresh.payment_method,
  attempt_open = 0, checks = 0, lost_leases = 0, grace_until = GREATEST(billing_job.grace_until, fresh.grace_until),
  updated_at = NOW(6)

-- name: dun
-- What becomes of the subscription is dunning's to say.
UPDATE subscription SET next_dunning_at = NOW(6) WHERE shard_id = %(shard)s AND id = %(subscription)s
