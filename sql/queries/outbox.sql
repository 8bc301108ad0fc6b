-- Events: written with the change they tell of, leased to one publisher a shard, sent in order, marked, purged. See docs/events.md.

-- name: insert_events
INSERT INTO outbox (shard_id, id, type, subscription_id, payload, created_at)
SELECT %(shard)s, r.id, r.type, r.subscription_id, r.payload, NOW(6)
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              BIGINT UNSIGNED PATH '$[0]',
  type            VARCHAR(63)     PATH '$[1]',
  subscription_id VARCHAR(64)     PATH '$[2]',
  payload         JSON            PATH '$[3]')) AS r

-- name: count_unsent
SELECT shard_id, COUNT(*) FROM outbox WHERE shard_id IN %(shards)s AND sent_at IS NULL GROUP BY shard_id

-- name: shards_to_publish
-- Those with something to send now: one look into each of two indexes a shard.
SELECT s.shard_id
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (shard_id SMALLINT UNSIGNED PATH '$')) AS s
WHERE EXISTS (SELECT 1 FROM outbox AS o WHERE o.shard_id = s.shard_id AND o.sent_at IS NULL AND o.held = 0)
   OR EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.shard_id = s.shard_id AND b.next_try_at <= NOW(6))

-- name: take_lease
-- Taken where it is free, renewed where it is ours. `until` is judged after `token` was set.
INSERT INTO shard_task (shard_id, task, token, until)
VALUES (%(shard)s, 'publish', %(token)s, NOW(6) + INTERVAL %(seconds)s * 1000000 MICROSECOND)
ON DUPLICATE KEY UPDATE
  token = IF(until <= NOW(6), %(token)s, token),
  until = IF(token = %(token)s, NOW(6) + INTERVAL %(seconds)s * 1000000 MICROSECOND, until)

-- name: lease
SELECT token, TIMESTAMPDIFF(MICROSECOND, NOW(6), until) / 1000000 FROM shard_task WHERE shard_id = %(shard)s AND task = 'publish'

-- name: release_lease
UPDATE shard_task SET until = NOW(6) WHERE shard_id = %(shard)s AND task = 'publish' AND token = %(token)s

-- name: unsent
-- The first of those that are to be sent. By the index: their numbers' order is the order in which they were committed, and an
-- event that commits late has a higher number than all that are there.
SELECT o.id, o.type, o.subscription_id, o.payload, o.created_at, b.event_id IS NOT NULL AS blocked
FROM outbox AS o FORCE INDEX (unsent)
LEFT JOIN outbox_blocked AS b ON b.shard_id = o.shard_id AND b.subscription_id = o.subscription_id
WHERE o.shard_id = %(shard)s AND o.sent_at IS NULL AND o.held = 0
ORDER BY o.id
LIMIT %(limit)s

-- name: due_again
-- Events that were not taken, whose time to be tried again has come.
SELECT o.id, o.type, o.subscription_id, o.payload, o.created_at, b.failures
FROM outbox_blocked AS b FORCE INDEX (due)
STRAIGHT_JOIN outbox AS o ON o.shard_id = b.shard_id AND o.id = b.event_id
WHERE b.shard_id = %(shard)s AND b.next_try_at <= NOW(6)
ORDER BY b.next_try_at
LIMIT %(limit)s

-- name: mark_sent
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN outbox AS o ON o.shard_id = %(shard)s AND o.id = r.id
SET o.sent_at = NOW(6), o.held = 0
WHERE o.sent_at IS NULL

-- name: lock_blocked
SELECT subscription_id, event_id, failures FROM outbox_blocked
WHERE shard_id = %(shard)s AND subscription_id IN %(subscriptions)s
FOR UPDATE

-- name: lock_unsent
SELECT o.id
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN outbox AS o ON o.shard_id = %(shard)s AND o.id = r.id
WHERE o.sent_at IS NULL
FOR UPDATE OF o

-- name: block
INSERT INTO outbox_blocked (shard_id, subscription_id, event_id, problem, details, failures, since, next_try_at)
SELECT %(shard)s, r.subscription_id, r.event_id, r.problem, r.details, r.failures, NOW(6),
       NOW(6) + INTERVAL r.wait_seconds * 1000000 MICROSECOND
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  subscription_id VARCHAR(64)     PATH '$[0]',
  event_id        BIGINT UNSIGNED PATH '$[1]',
  problem         VARCHAR(16)     PATH '$[2]',
  details         VARCHAR(500)    PATH '$[3]',
  failures        INT UNSIGNED    PATH '$[4]',
  wait_seconds    DOUBLE          PATH '$[5]')) AS r
ON DUPLICATE KEY UPDATE
  problem = r.problem, details = r.details, failures = r.failures,
  next_try_at = NOW(6) + INTERVAL r.wait_seconds * 1000000 MICROSECOND

-- name: unblock
DELETE FROM outbox_blocked WHERE shard_id = %(shard)s AND subscription_id IN %(subscriptions)s

-- name: hold
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN outbox AS o ON o.shard_id = %(shard)s AND o.id = r.id
SET o.held = 1
WHERE o.sent_at IS NULL

-- name: held_of
SELECT id FROM outbox FORCE INDEX (unsent)
WHERE shard_id = %(shard)s AND sent_at IS NULL AND held = 1 AND subscription_id IN %(subscriptions)s
FOR UPDATE

-- name: let_go
UPDATE JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN outbox AS o ON o.shard_id = %(shard)s AND o.id = r.id
SET o.held = 0
WHERE o.sent_at IS NULL

-- name: skip
UPDATE outbox SET held = 2, sent_at = NOW(6) WHERE shard_id = %(shard)s AND id = %(id)s AND sent_at IS NULL

-- name: try_now
UPDATE outbox_blocked SET next_try_at = NOW(6) WHERE shard_id = %(shard)s AND subscription_id IN %(subscriptions)s

-- name: lock_event
SELECT id, type, subscription_id, sent_at, held FROM outbox WHERE shard_id = %(shard)s AND id = %(id)s FOR UPDATE

-- name: event
SELECT id, type, subscription_id, sent_at, held FROM outbox WHERE shard_id = %(shard)s AND id = %(id)s

-- name: lock_blockage
SELECT event_id, problem, details, failures FROM outbox_blocked
WHERE shard_id = %(shard)s AND subscription_id = %(subscription)s
FOR UPDATE

-- name: blocked
SELECT b.shard_id, b.event_id, o.type, b.subscription_id, b.problem, b.details, b.failures, b.since, b.next_try_at,
       (SELECT COUNT(*) FROM outbox AS w FORCE INDEX (unsent)
        WHERE w.shard_id = b.shard_id AND w.sent_at IS NULL AND w.held = 1 AND w.subscription_id = b.subscription_id
          AND w.id <> b.event_id) AS waiting
FROM outbox_blocked AS b
JOIN outbox AS o ON o.shard_id = b.shard_id AND o.id = b.event_id
WHERE b.shard_id IN %(shards)s
ORDER BY b.since
LIMIT %(limit)s

-- name: measure
-- Of each shard: subscriptions that are blocked, and when the oldest event that is not sent was written.
SELECT s.shard_id,
       (SELECT COUNT(*) FROM outbox_blocked AS b WHERE b.shard_id = s.shard_id) AS blocked,
       (SELECT o.created_at FROM outbox AS o FORCE INDEX (unsent)
        WHERE o.shard_id = s.shard_id AND o.sent_at IS NULL AND o.held = 0
        ORDER BY o.id LIMIT 1) AS oldest
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (shard_id SMALLINT UNSIGNED PATH '$')) AS s

-- name: shards_to_purge
SELECT s.shard_id
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (shard_id SMALLINT UNSIGNED PATH '$')) AS s
WHERE EXISTS (
  SELECT 1 FROM outbox AS o WHERE o.shard_id = s.shard_id AND o.sent_at < NOW(6) - INTERVAL %(retention_seconds)s SECOND)

-- name: outlived
SELECT id FROM outbox FORCE INDEX (unsent)
WHERE shard_id = %(shard)s AND sent_at < NOW(6) - INTERVAL %(retention_seconds)s SECOND
ORDER BY sent_at
LIMIT %(limit)s

-- name: purge
DELETE o
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (id BIGINT UNSIGNED PATH '$')) AS r
STRAIGHT_JOIN outbox AS o ON o.shard_id = %(shard)s AND o.id = r.id

-- name: note_purged
INSERT INTO outbox_purged (shard_id, purged, line) VALUES (%(shard)s, %(count)s, %(line)s)
ON DUPLICATE KEY UPDATE purged = purged + %(count)s, line = GREATEST(line, %(line)s)
