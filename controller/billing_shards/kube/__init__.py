"""The operator: what a `BillingShardSet` asks for, what is there, and the steps from one to the other.

`observe` looks, `decide` says what to do (pure), `apply` does it, `handlers` call the three of them again and again: on every
event and on a clock alike, so that a lost event costs time and nothing else.
"""
