-- Looks at charges that wait for the customer. Statuses are numbers: see sql/schema. The due_at of a job that waits for the customer
-- (4) is its next look; of one that nobody looks at, the end of time.

-- name: due_lanes
-- A loose scan, as that of next_due.
SELECT shard_id, lane
FROM billing_job
WHERE shard_id IN %(shards)s AND status = 4
GROUP BY shard_id, lane
HAVING MIN(due_at) <= NOW(6)

-- name: due
SELECT j.id, j.invoice_id, j.attempt_no, j.checks, t.provider, COALESCE(t.outcome = 3, FALSE)
FROM billing_job AS j FORCE INDEX (claim)
LEFT JOIN payment_attempt AS t FORCE INDEX (PRIMARY)
  ON t.shard_id = j.shard_id AND t.job_id = j.id AND t.attempt_no = j.attempt_no
WHERE j.shard_id = %(shard)s AND j.lane = %(lane)s AND j.status = 4 AND j.due_at <= NOW(6)
ORDER BY j.due_at, j.id
LIMIT %(limit)s
FOR UPDATE OF j SKIP LOCKED

-- name: put_off
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
         id           BIGINT UNSIGNED  PATH '$[0]',
         wait_seconds DOUBLE           PATH '$[1]',
         checks       TINYINT UNSIGNED PATH '$[2]')) AS r
STRAIGHT_JOIN billing_job AS j ON j.shard_id = %(shard)s AND j.id = r.id
SET j.due_at = COALESCE(NOW(6) + INTERVAL r.wait_seconds * 1000000 MICROSECOND, '9999-12-31'), j.checks = r.checks, j.updated_at = NOW(6)
WHERE j.status = 4
