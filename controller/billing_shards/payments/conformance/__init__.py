"""A test that a provider's team runs against its own sandbox: does it keep the protocol of docs/gateway-protocol.md?

model    a rule, a verdict, what the provider is to be tried with      client   requests, and what is expected of their answers
charges  the rules of charges, keys and look-ups                      refunds  the rules of refunds
cancels  the rules of cancels                                   webhooks the rules of webhooks
run      runs all rules, one after the other
"""
