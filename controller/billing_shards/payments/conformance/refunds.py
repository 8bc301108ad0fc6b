"""The rules of refunds."""

from __future__ import annotations

import asyncio
from typing import Any

from billing_shards.payments.conformance.client import (
    Client,
    Document,
    document,
    expect,
    expect_error,
    expect_named,
    expect_status,
)
from billing_shards.payments.conformance.model import Rule, Trial

_AT_ONCE = 6


def _body(client: Client, charge: Document, amount: int) -> Document:
    return {"charge": charge["id"], "amount": amount, "currency": charge["currency"], "reference": f"refund/{client.name()}"}


async def _refunded(client: Client, body: Document, key: str | None = None) -> Document:
    reply = await client.post("/v1/refunds", body, key or client.name())
    expect_status(reply, 200)
    refund = document(reply.body)
    for name in ("charge", "amount", "currency", "reference"):
        expect(refund.get(name) == body[name], f"{name} must be as sent", refund)
    expect(refund.get("status") in {"succeeded", "pending"}, "status must be succeeded or pending", refund)
    expect_named(refund)
    return refund


async def _is_made_and_found(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    body = _body(client, charge, trial.amount - 1)
    refund = await _refunded(client, body)
    for query in ({"reference": body["reference"]}, {"charge": charge["id"]}):
        ids = [each.get("id") for each in await client.refunds_of(**query)]
        expect(ids == [refund["id"]], f"exactly this refund by its {next(iter(query))}", ids)
    reply = await client.get(f"/v1/refunds/{refund['id']}")
    expect(reply.status == 200 and document(reply.body).get("id") == refund["id"], "it is found by its id", reply)  # noqa: PLR2004
    expect(await client.refunds_of(reference=body["reference"] + "0") == [], "an empty list where there is none", "a refund")


async def _is_keyed(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    body, key = _body(client, charge, 1), client.name()
    refund = await _refunded(client, body, key)
    again = await client.post("/v1/refunds", body, key)
    expect(again.status == 200 and again.body == refund, "the same answer again", again)  # noqa: PLR2004
    changed = await client.post("/v1/refunds", {**body, "amount": 2}, key)
    expect_error(changed, 400, "idempotency_error", "idempotency_key_mismatch")
    refunds = await client.refunds_of(charge=charge["id"])
    expect(len(refunds) == 1, "exactly one refund", len(refunds))


async def _sum_is_bounded(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    for amount in (1, trial.amount - 1):
        await _refunded(client, _body(client, charge, amount))
    more = await client.post("/v1/refunds", _body(client, charge, 1), client.name())
    expect_error(more, 400, "invalid_request_error", "refund_too_large")


async def _sum_is_bounded_at_once(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    half = trial.amount // 2

    async def refund(_: int) -> Any:
        return await client.post("/v1/refunds", _body(client, charge, half), client.name())

    replies = await asyncio.gather(*(refund(n) for n in range(_AT_ONCE)))
    given = sum(reply.status == 200 for reply in replies)  # noqa: PLR2004
    expect(given * half <= trial.amount, f"refunds of at most {trial.amount}", f"{given} refunds of {half} each")


async def _bad_ones_are_refused(client: Client, trial: Trial) -> None:
    charge = await client.charge(client.body(trial))
    missing = await client.post("/v1/refunds", {**_body(client, charge, 1), "charge": "none-of-this-name"}, client.name())
    expect_error(missing, 404, "invalid_request_error", "resource_missing")
    for changes in ({"amount": 0}, {"currency": "usd"}, {"reason": "x"}, {"reference": ""}):
        reply = await client.post("/v1/refunds", {**_body(client, charge, 1), **changes}, client.name())
        expect_error(reply, 400, "invalid_request_error", "parameter_invalid")
    too_much = await client.post("/v1/refunds", _body(client, charge, trial.amount + 1), client.name())
    expect_error(too_much, 400, "invalid_request_error", "refund_too_large")
    expect(await client.refunds_of(charge=charge["id"]) == [], "nothing was given back", "a refund")


async def _declined_charges_are_not_refunded(client: Client, trial: Trial) -> None:
    reply = await client.post("/v1/charges", client.body(trial, trial.declines), client.name())
    expect_status(reply, 402)
    charge = document(document(reply.body).get("charge"))
    refused = await client.post("/v1/refunds", _body(client, charge, 1), client.name())
    expect_error(refused, 400, "invalid_request_error", "charge_not_refundable")


def rules() -> list[Rule]:
    """In the order in which they are tried."""
    said = [
        ("refund.made", "a refund says what was asked, and is found by id, reference and charge", _is_made_and_found),
        ("refund.keyed", "the same key gives back once", _is_keyed),
        ("refund.sum", "the sum of a charge's refunds never exceeds it", _sum_is_bounded),
        ("refund.at-once", "nor where they come at once", _sum_is_bounded_at_once),
        ("refund.invalid", "a bad refund is refused by name and gives nothing back", _bad_ones_are_refused),
    ]
    made = [
        Rule(name=name, says=says, check=check, needs=lambda trial: trial.refunds, wants="a provider that refunds")
        for name, says, check in said
    ]
    declined = Rule(
        name="refund.declined",
        says="a charge that failed is not refunded",
        check=_declined_charges_are_not_refunded,
        needs=lambda trial: trial.refunds and trial.declines is not None,
        wants="--declines",
    )
    return [*made, declined]
