-- name: insert_act
INSERT INTO manual_act (shard_id, id, actor, act, subscription_id, subject, reason, before_act, after_act, created_at)
SELECT %(shard)s, r.id, r.actor, r.act, r.subscription_id, r.subject, r.reason, r.before_act, r.after_act, NOW(6)
FROM JSON_TABLE(%(rows)s, '$[*]' COLUMNS (
  id              BIGINT UNSIGNED PATH '$[0]',
  actor           VARCHAR(128)    PATH '$[1]',
  act             VARCHAR(32)     PATH '$[2]',
  subscription_id VARCHAR(64)     PATH '$[3]',
  subject         VARCHAR(96)     PATH '$[4]',
  reason          VARCHAR(500)    PATH '$[5]',
  before_act      JSON            PATH '$[6]',
  after_act       JSON            PATH '$[7]')) AS r

-- name: written
-- Asked after a lost answer to COMMIT. Locking: it waits for a COMMIT that is still under way.
SELECT COUNT(*) FROM manual_act WHERE shard_id = %(shard)s AND id = %(id)s FOR SHARE

-- name: of_subscription
SELECT id, actor, act, subject, reason, before_act, after_act, created_at
FROM manual_act
WHERE shard_id = %(shard)s AND subscription_id = %(subscription)s
ORDER BY created_at, id
