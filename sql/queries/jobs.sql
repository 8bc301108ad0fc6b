-- Claim, renew, finish and reap. `status` is written as a number: 0 ready, 1 processing, 5 review (see sql/schema).

-- name: next_due
-- A loose scan of the claim index, one look for each lane that has jobs: 0.3 ms for 256 shards. NOW(6) goes along, so that only
-- one clock counts.
SELECT shard_id, lane, MIN(due_at), NOW(6)
FROM billing_job
WHERE shard_id IN %(shards)s AND status = 0
GROUP BY shard_id, lane

-- name: claim_candidates
-- As one text a row: PyMySQL takes two thirds longer over eleven columns. None is NULL, and none can hold a tab.
SELECT CONCAT_WS('\t', id, subscription_id, invoice_id, amount, currency, payment_method, HEX(idempotency_key), attempt_no, attempt_open,
                 checks, TIMESTAMPDIFF(SECOND, NOW(6), grace_until))
FROM billing_job FORCE INDEX (claim)
WHERE shard_id = %(shard)s AND lane = %(lane)s AND status = 0 AND due_at >= %(since)s AND due_at <= NOW(6)
ORDER BY due_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: claim
-- MySQL assigns from left to right: attempt_no reads the old attempt_open.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = 1, lease_token = %(token)s, due_at = NOW(6) + INTERVAL %(lease_seconds)s SECOND,
    attempt_no = attempt_no + (attempt_open = 0), attempt_open = 1, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s

-- name: open_attempts
-- From the jobs, which are marked already: nothing is sent that the database has. The key is that of jobs.model.attempt_key.
INSERT INTO payment_attempt (shard_id, job_id, attempt_no, idempotency_key, provider, amount, currency, outcome, created_at)
SELECT shard_id, id, attempt_no, UNHEX(SHA2(CONCAT(idempotency_key, attempt_no), 256)), %(provider)s, amount, currency, 0, NOW(6)
FROM JSON_TABLE(%(ids)s, '$[*]' COLUMNS (job_id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN billing_job FORCE INDEX (PRIMARY) ON shard_id = %(shard)s AND id = r.job_id

-- name: open_already
SELECT job_id, TIMESTAMPDIFF(MICROSECOND, created_at, NOW(6)) / 1e6, provider, outcome = 7
FROM payment_attempt
WHERE shard_id = %(shard)s AND (job_id, attempt_no) IN %(attempts)s

-- name: claimed
-- Asked after a lost answer to COMMIT. Locking: it waits for a COMMIT that is still under way.
SELECT COUNT(*) FROM billing_job WHERE shard_id = %(shard)s AND id IN %(ids)s AND lease_token = %(token)s FOR SHARE

-- name: renew
UPDATE JSON_TABLE(%(held)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', token BIGINT UNSIGNED PATH '$[1]')) AS h
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = h.id
SET j.due_at = NOW(6) + INTERVAL %(lease_seconds)s SECOND, j.updated_at = NOW(6)
WHERE j.status = 1 AND j.lease_token = h.token

-- name: release
UPDATE JSON_TABLE(%(held)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', token BIGINT UNSIGNED PATH '$[1]')) AS h
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = h.id
SET j.status = 0, j.due_at = NOW(6), j.updated_at = NOW(6)
WHERE j.status = 1 AND j.lease_token = h.token

-- name: held
SELECT j.id, j.lease_token
FROM JSON_TABLE(%(held)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', token BIGINT UNSIGNED PATH '$[1]')) AS h
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = h.id
WHERE j.status = 1 AND j.lease_token = h.token
FOR UPDATE OF j

-- name: finish_paid
-- The usual end, of the jobs of one claim. The token is the fence, as below.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = 2, due_at = NOW(6), attempt_open = 0, checks = 0, lost_leases = 0, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1 AND lease_token = %(token)s

-- name: finish
-- The token is the fence: a job whose lease was lost is not found, and the caller compares the number of rows.
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id           BIGINT UNSIGNED PATH '$[0]',
         token        BIGINT UNSIGNED PATH '$[1]',
         status       TINYINT         PATH '$[2]',
         lane         TINYINT UNSIGNED PATH '$[3]',
         wait_seconds DOUBLE          PATH '$[4]',
         attempt_open TINYINT         PATH '$[5]',
         checks       TINYINT UNSIGNED PATH '$[6]')) AS r
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = r.id
SET j.status = r.status, j.lane = r.lane,
    j.due_at = COALESCE(NOW(6) + INTERVAL r.wait_seconds * 1000000 MICROSECOND, '9999-12-31'),
    j.attempt_open = r.attempt_open, j.checks = r.checks, j.lost_leases = 0, j.updated_at = NOW(6)
WHERE j.status = 1 AND j.lease_token = r.token

-- name: finished
-- Asked after a lost answer to COMMIT: lease_token stays on a finished job as the proof of who finished it.
SELECT COUNT(*)
FROM JSON_TABLE(%(held)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$[0]', token BIGINT UNSIGNED PATH '$[1]')) AS h
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = h.id
WHERE j.status <> 1 AND j.lease_token = h.token
FOR SHARE OF j

-- name: expired_lanes
SELECT shard_id, lane
FROM billing_job
WHERE shard_id IN %(shards)s AND status = 1
GROUP BY shard_id, lane
HAVING MIN(due_at) < NOW(6)

-- name: expired_leases
SELECT id, lost_leases, subscription_id, invoice_id
FROM billing_job FORCE INDEX (claim)
WHERE shard_id = %(shard)s AND lane = %(lane)s AND status = 1 AND due_at < NOW(6)
ORDER BY due_at, id
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: reap
-- Each job waits its own share of the jitter, so that a batch that kills its worker does not come back as one.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = %(status)s, lease_token = 0, lost_leases = lost_leases + 1,
    due_at = NOW(6) + INTERVAL FLOOR(RAND() * %(jitter_seconds)s * 1000000) MICROSECOND, updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 1 AND due_at < NOW(6)

-- name: waiting_charges
-- Of jobs that are to be tried anew, those whose last attempt waited for the customer: its charge can still be completed.
SELECT j.id, t.attempt_no
FROM billing_job AS j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN payment_attempt AS t FORCE INDEX (PRIMARY)
  ON t.shard_id = j.shard_id AND t.job_id = j.id AND t.attempt_no = j.attempt_no
WHERE j.shard_id = %(shard)s AND j.id IN %(ids)s AND j.status = 0 AND j.attempt_open = 0 AND t.outcome = 3
FOR UPDATE

-- name: open_again
UPDATE billing_job FORCE INDEX (PRIMARY) SET attempt_open = 1, checks = 0
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status = 0

-- name: to_cancel
UPDATE payment_attempt FORCE INDEX (PRIMARY) SET outcome = 7, finished_at = NULL
WHERE shard_id = %(shard)s AND (job_id, attempt_no) IN %(attempts)s

-- name: lanes_in_use
-- A loose scan: as many looks as there are lanes, however many jobs.
SELECT DISTINCT lane FROM (SELECT shard_id, lane FROM billing_job WHERE shard_id IN %(shards)s GROUP BY shard_id, lane) AS used

-- name: backlog
-- Two ranges of the claim index; jobs that are ready for later are not read.
SELECT shard_id, lane, status, COUNT(*), MIN(due_at)
FROM billing_job
WHERE shard_id IN %(shards)s AND lane IN %(lanes)s AND status = 0 AND due_at <= NOW(6)
GROUP BY shard_id, lane
UNION ALL
SELECT shard_id, lane, status, COUNT(*), MIN(due_at)
FROM billing_job
WHERE shard_id IN %(shards)s AND lane IN %(lanes)s AND status = 1
GROUP BY shard_id, lane

-- name: purgeable_lanes
-- A finished job's due_at is when it finished. A loose scan, as that of next_due.
SELECT shard_id, lane
FROM billing_job
WHERE shard_id IN %(shards)s AND status = %(status)s
GROUP BY shard_id, lane
HAVING MIN(due_at) < NOW(6) - INTERVAL %(retention_seconds)s SECOND

-- name: purgeable
-- The next ones by the claim index, and whether each may be deleted. One that is locked (somebody looks into it) is left.
SELECT j.id, j.due_at, i.status IN (2, 4) AND j.attempt_open = 0
FROM billing_job AS j FORCE INDEX (claim)
STRAIGHT_JOIN invoice AS i ON i.shard_id = j.shard_id AND i.id = j.invoice_id
WHERE j.shard_id = %(shard)s AND j.lane = %(lane)s AND j.status = %(status)s
  AND (j.due_at > %(finished_at)s OR (j.due_at = %(finished_at)s AND j.id > %(job)s))
  AND j.due_at < NOW(6) - INTERVAL %(retention_seconds)s SECOND
ORDER BY j.due_at, j.id
LIMIT %(limit)s
FOR UPDATE OF j SKIP LOCKED

-- name: purge
-- By primary key whatever the table's size: on a small one, or for a long list, the optimizer would read and lock all of it.
DELETE /*+ INDEX(billing_job PRIMARY) */ FROM billing_job
WHERE shard_id = %(shard)s AND id IN %(ids)s AND status IN (2, 3)

-- name: lock_job
-- Job first, then invoice: the order of settlement.
SELECT j.lane, j.status, j.attempt_open, j.subscription_id, j.invoice_id, i.status, j.attempt_no
FROM billing_job AS j FORCE INDEX (PRIMARY)
STRAIGHT_JOIN invoice AS i FORCE INDEX (PRIMARY) ON i.shard_id = j.shard_id AND i.id = j.invoice_id
WHERE j.shard_id = %(shard)s AND j.id = %(job)s
FOR UPDATE

-- name: change_job
-- Looks at an open attempt, and lost workers, are counted anew. A lease that is taken back leaves no token: its worker, should it
-- live, finds nothing to finish.
UPDATE billing_job FORCE INDEX (PRIMARY)
SET status = %(status)s, lane = %(lane)s, due_at = IF(%(due_now)s, NOW(6), due_at), checks = 0, lost_leases = 0,
    attempt_open = IF(%(closes)s, 0, attempt_open), lease_token = IF(%(drop_lease)s, 0, lease_token), updated_at = NOW(6)
WHERE shard_id = %(shard)s AND id = %(job)s

-- name: close_attempt
UPDATE payment_attempt SET outcome = 4, code = 'closed_by_hand', finished_at = NOW(6)
WHERE shard_id = %(shard)s AND job_id = %(job)s AND attempt_no = %(attempt_no)s AND outcome IN (0, 5, 7)

-- name: reopen_uncollectible
UPDATE invoice FORCE INDEX (PRIMARY) SET status = 1 WHERE shard_id = %(shard)s AND id = %(invoice)s AND status = 3

-- name: list_jobs
-- The first ones of each part of the claim index, however many wait behind them; then the first of these.
SELECT j.shard_id, j.id, j.lane, j.status, j.due_at, j.subscription_id, j.invoice_id, j.amount, j.currency, j.attempt_no,
       j.attempt_open, j.checks, j.lost_leases, j.grace_until, j.updated_at, NOW(6) AS now
FROM (SELECT DISTINCT shard_id, lane, status FROM billing_job WHERE shard_id IN %(shards)s) AS part
STRAIGHT_JOIN LATERAL (
  SELECT *
  FROM billing_job FORCE INDEX (claim)
  WHERE shard_id = part.shard_id AND lane = part.lane AND status = part.status
  ORDER BY due_at, id
  LIMIT %(limit)s) AS j
WHERE part.lane IN %(lanes)s AND part.status IN %(statuses)s
ORDER BY j.due_at, j.shard_id, j.id
LIMIT %(limit)s

-- name: job_by_id
SELECT shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, attempt_no, attempt_open, checks,
       lost_leases, grace_until, updated_at, NOW(6) AS now
FROM billing_job
WHERE shard_id = %(shard)s AND id = %(job)s

-- name: jobs_by_key
SELECT shard_id, id, lane, status, due_at, subscription_id, invoice_id, amount, currency, attempt_no, attempt_open, checks,
       lost_leases, grace_until, updated_at, NOW(6) AS now
FROM billing_job
WHERE shard_id = %(shard)s AND idempotency_key IN %(keys)s AND lane IN %(lanes)s AND status IN %(statuses)s
ORDER BY due_at, id
LIMIT %(limit)s

-- name: periods_of_subscription
SELECT period_start, charge_type FROM invoice WHERE shard_id = %(shard)s AND subscription_id = %(subscription)s
