-- What a batch of outcomes changes beside its jobs (sql/queries/jobs.sql) and the ledger. Each is by primary key.

-- name: finish_attempts
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         job_id       BIGINT UNSIGNED PATH '$[0]',
         attempt_no   SMALLINT UNSIGNED PATH '$[1]',
         outcome      TINYINT         PATH '$[2]',
         provider_ref VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[3]',
         code         VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin PATH '$[4]',
         finished     TINYINT         PATH '$[5]')) AS r
STRAIGHT_JOIN payment_attempt AS a ON a.shard_id = %(shard)s AND a.job_id = r.job_id AND a.attempt_no = r.attempt_no
SET a.outcome = r.outcome, a.provider_ref = COALESCE(r.provider_ref, a.provider_ref), a.code = r.code,
    a.finished_at = IF(r.finished, NOW(6), NULL)

-- name: pay_invoices
UPDATE invoice FORCE INDEX (PRIMARY) SET status = 2
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1

-- name: give_up_invoices
UPDATE invoice FORCE INDEX (PRIMARY) SET status = 3
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1

-- name: subscriptions_past_due
UPDATE subscription FORCE INDEX (PRIMARY) SET status = 2, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1

-- name: recover_subscriptions
UPDATE subscription FORCE INDEX (PRIMARY) SET status = 1, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 2

-- name: suspend_subscriptions
-- No more invoices: next_invoice_at NULL takes it out of the scheduler's index.
UPDATE subscription FORCE INDEX (PRIMARY) SET status = 3, next_invoice_at = NULL, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status IN (1, 2)
