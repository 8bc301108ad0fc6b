"""Charging: the gateway port, the flow of one charge, and what its outcome does to job, invoice and ledger."""
