-- What a batch of outcomes changes beside its jobs (sql/queries/jobs.sql) and the ledger. Each is by primary key.

-- name: finish_paid_attempts
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         job_id       BIGINT UNSIGNED PATH '$[0]',
         attempt_no   SMALLINT UNSIGNED PATH '$[1]',
         provider_ref VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin PATH '$[2]')) AS r
STRAIGHT_JOIN payment_attempt AS a ON a.shard_id = %(shard)s AND a.job_id = r.job_id AND a.attempt_no = r.attempt_no
SET a.outcome = 1, a.provider_ref = r.provider_ref, a.code = NULL, a.finished_at = NOW(6)

-- name: paid
-- Jobs by number, in the order given. A window function in place of the ordinality would sort them: 3 us a job.
JSON_TABLE(%(ids)s, '$[*]' COLUMNS (number FOR ORDINALITY, id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN billing_job AS j FORCE INDEX (PRIMARY) ON j.shard_id = %(shard)s AND j.id = r.id
STRAIGHT_JOIN payment_attempt AS a ON a.shard_id = j.shard_id AND a.job_id = j.id AND a.attempt_no = j.attempt_no

-- name: book_payments
-- What a provider took for us: clearing → receivable. Made from jobs and attempts, so that nothing is sent that the database has.
-- Keyed by the attempt: the same fact is never booked twice. Kind 2 is accounts.ledger.Kind.PAYMENT_SUCCEEDED.
INSERT INTO ledger_entry
  (shard_id, id, debit_account, credit_account, amount, currency, kind, invoice_id, idempotency_key, created_at)
SELECT j.shard_id, %(first)s - 1 + r.number, CONCAT('clearing:', a.provider),
       CONCAT('receivable:', j.subscription_id), j.amount, j.currency, 2, j.invoice_id,
       UNHEX(SHA2(CONCAT(a.idempotency_key, 'paid'), 256)), NOW(6)
FROM {paid}

-- name: tell_payments
-- Their events, in the same order.
INSERT INTO outbox (shard_id, id, type, subscription_id, payload, created_at)
SELECT j.shard_id, %(first)s - 1 + r.number, 'payment.succeeded', j.subscription_id,
       JSON_OBJECT('invoice', j.invoice_id, 'amount', j.amount, 'currency', j.currency, 'attempt', j.attempt_no,
                   'provider_ref', a.provider_ref),
       NOW(6)
FROM {paid}

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

-- name: look_at_subscriptions
-- What becomes of them dunning judges (sql/queries/dunning.sql): it alone changes their status.
UPDATE subscription FORCE INDEX (PRIMARY) SET next_dunning_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s
