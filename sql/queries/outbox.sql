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
