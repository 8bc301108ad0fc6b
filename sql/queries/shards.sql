-- name: installation
SELECT shard_set, shard_count, `database` FROM installation

-- name: insert_installation
INSERT INTO installation (id, shard_set, shard_count, `database`, created_at)
VALUES (1, %(shard_set)s, %(shard_count)s, %(database)s, NOW(6))

-- name: owners
SELECT shard_id, epoch, state, moved_to FROM shard_owner

-- name: insert_owner
INSERT INTO shard_owner (shard_id, epoch, state, updated_at) VALUES (%(shard)s, 1, 1, NOW(6))

-- name: insert_sequence
INSERT INTO shard_sequence (shard_id, name, next_value) VALUES (%(shard)s, %(name)s, 1)

-- name: fence
SELECT state, moved_to, NOW(6) FROM shard_owner WHERE shard_id = %(shard)s FOR SHARE

-- name: advance_sequences
UPDATE shard_sequence
SET next_value = next_value + CASE name WHEN 'id' THEN %(id)s WHEN 'event' THEN %(event)s ELSE %(ledger)s END
WHERE shard_id = %(shard)s AND name IN %(names)s

-- name: sequences
SELECT name, next_value FROM shard_sequence WHERE shard_id = %(shard)s AND name IN %(names)s
