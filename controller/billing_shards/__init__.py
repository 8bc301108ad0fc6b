"""Subscription billing and account bookkeeping on sharded MySQL, run by a Kubernetes operator."""
