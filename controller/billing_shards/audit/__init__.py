"""The audit: proves over all shards that what is written is whole, and matches the provider's list of charges."""
