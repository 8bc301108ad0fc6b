"""Money, and the immutable double-entry ledger."""
