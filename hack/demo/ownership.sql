-- The shards that this database owns by its fences, and how many invoices each has here.
SELECT o.shard_id, o.epoch, (SELECT COUNT(*) FROM invoice AS i WHERE i.shard_id = o.shard_id)
FROM shard_owner AS o
WHERE o.state = 1
