"""The queue of due charges: claim under a lease, settle by token, reap what was lost."""
