-- Refunds. `status` as a number: 0 requested, 1 pending, 2 succeeded, 3 failed, 4 unknown, 5 review (see sql/schema).

-- name: invoice
-- Whose it is, what its job's key follows from, and the service it was issued for, whatever the subscription's is by now.
SELECT i.subscription_id, i.period_start, i.charge_type, SUBSTRING(e.credit_account, LENGTH('revenue:') + 1)
FROM invoice AS i
JOIN ledger_entry AS e
  ON e.shard_id = i.shard_id
  AND e.idempotency_key = UNHEX(SHA2(CONCAT(
        UNHEX(SHA2(CONCAT(i.subscription_id, '|', i.period_start, '|', i.charge_type), 256)), 'issued'), 256))
WHERE i.shard_id = %(shard)s AND i.id = %(invoice)s

-- name: lock_job
-- Before the invoice, as settlements do it.
SELECT id FROM billing_job FORCE INDEX (idempotency) WHERE shard_id = %(shard)s AND idempotency_key = %(key)s FOR UPDATE

-- name: lock_invoice
-- Whoever changes what is refunded of an invoice holds this lock: two at once cannot both pass the bound.
SELECT amount, currency, status FROM invoice WHERE shard_id = %(shard)s AND id = %(invoice)s FOR UPDATE

-- name: payment
-- The attempt that took the money, and was not reversed. By the first attempt's key: the job may be deleted already.
SELECT t.attempt_no, t.provider, t.provider_ref, t.amount, t.currency
FROM payment_attempt AS f
JOIN payment_attempt AS t ON t.shard_id = f.shard_id AND t.job_id = f.job_id
WHERE f.shard_id = %(shard)s AND f.idempotency_key = %(first_key)s AND t.outcome = 1

-- name: refunded
SELECT CAST(COALESCE(SUM(amount), 0) AS SIGNED)
FROM refund FORCE INDEX (request)
WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s AND status <> 3

-- name: columns
id, invoice_id, request_key, subscription_id, service, attempt_no, provider, charge_ref, amount, currency, idempotency_key,
       source, status, provider_ref, code, checks

-- name: by_key
SELECT {columns}
FROM refund
WHERE shard_id = %(shard)s AND invoice_id = %(invoice)s AND request_key = %(request_key)s

-- name: insert_refund
INSERT INTO refund
  (shard_id, id, invoice_id, request_key, subscription_id, service, attempt_no, provider, charge_ref, amount, currency,
   idempotency_key, source, status, provider_ref, code, due_at, created_at, succeeded_at, finished_at)
VALUES
  (%(shard)s, %(id)s, %(invoice)s, %(request_key)s, %(subscription)s, %(service)s, %(attempt_no)s, %(provider)s, %(charge_ref)s,
   %(amount)s, %(currency)s, %(key)s, %(source)s, %(status)s, %(provider_ref)s, %(code)s, IF(%(status)s = 0, NOW(6), NULL), NOW(6),
   IF(%(status)s = 2, NOW(6), NULL), IF(%(status)s = 2, NOW(6), NULL))

-- name: written
-- Asked after a lost answer to COMMIT. Locking: it waits for a COMMIT that is still under way.
SELECT COUNT(*) FROM refund WHERE shard_id = %(shard)s AND id = %(id)s FOR SHARE

-- name: due_shards
-- A loose scan: one look into the index for each shard.
SELECT shard_id
FROM refund FORCE INDEX (due)
WHERE shard_id IN %(shards)s AND due_at IS NOT NULL
GROUP BY shard_id
HAVING MIN(due_at) <= NOW(6)

-- name: due
SELECT {columns}, TIMESTAMPDIFF(MICROSECOND, sent_at, NOW(6)) / 1e6
FROM refund FORCE INDEX (due)
WHERE shard_id = %(shard)s AND due_at <= NOW(6)
ORDER BY due_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: take
-- Noted as sent before it is: a process that dies in between has perhaps sent it.
UPDATE refund FORCE INDEX (PRIMARY)
SET lease_token = %(token)s, due_at = NOW(6) + INTERVAL %(lease_seconds)s SECOND, sent_at = COALESCE(sent_at, NOW(6))
WHERE shard_id = %(shard)s AND id IN %(ids)s

-- name: taken
SELECT COUNT(*) FROM refund WHERE shard_id = %(shard)s AND id IN %(ids)s AND lease_token = %(token)s FOR SHARE

-- name: finish
-- The token is the fence: whoever lost its lease writes nothing.
UPDATE refund FORCE INDEX (PRIMARY)
SET status = %(status)s, checks = %(checks)s, lease_token = 0, provider_ref = COALESCE(%(provider_ref)s, provider_ref),
    code = COALESCE(%(code)s, code), due_at = NOW(6) + INTERVAL %(check_seconds)s * 1000000 MICROSECOND,
    sent_at = IF(%(received)s, sent_at, NULL), succeeded_at = IF(%(booked)s, NOW(6), succeeded_at),
    finished_at = IF(%(status)s IN (2, 3), NOW(6), NULL)
WHERE shard_id = %(shard)s AND id = %(id)s AND lease_token = %(token)s

-- name: lock_told
-- Those that webhooks tell of.
SELECT id, invoice_id, status, lease_token <> 0 AND due_at > NOW(6), subscription_id, amount, currency, provider
FROM refund FORCE INDEX (PRIMARY)
WHERE shard_id = %(shard)s AND id IN %(ids)s
ORDER BY id
FOR UPDATE

-- name: lock
SELECT {columns}, lease_token, lease_token <> 0 AND due_at > NOW(6)
FROM refund FORCE INDEX (PRIMARY)
WHERE shard_id = %(shard)s AND id = %(id)s
FOR UPDATE

-- name: ask_now
UPDATE refund FORCE INDEX (PRIMARY) SET due_at = NOW(6), lease_token = 0 WHERE shard_id = %(shard)s AND id IN %(ids)s
