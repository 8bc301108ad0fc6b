"""A payment provider over HTTP with its state on disk, whose faults are chosen by a seed and reproduce.

It stands in for a real provider in tests, demo, benchmarks and the fault simulator. The protocol is in
docs/gateway-protocol.md. Run it with `python -m hack.fake_gateway`, or from a test with `FakeGateway.start(folder)`.

    model     what a charge, a fault and an answer are          parse     JSON from outside -> model, or a named error
    decide    which faults and which outcome a charge meets     documents model -> JSON
    keyed     the life of one request under a key               store     SQLite, written in group commits
    charging, refunding   what such a request makes             changing  cancel, completion, reversal
    webhooks  tells the caller what became of it                admin     the test's side of the routes
    server    routes                                            page      charges for the eye
    stripe_…  the same provider in Stripe's words               process   starts and kills a server from a test
"""

from hack.fake_gateway.process import FakeGateway

__all__ = ["FakeGateway"]
