"""Logical shards: which shard a key is on, which database owns a shard, and the one transaction that writes to it."""
