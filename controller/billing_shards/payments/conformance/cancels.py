"""The rules of cancels: a charge that waits for the customer can be put beyond completion, and any other is left as it is."""

from __future__ import annotations

from billing_shards.payments.conformance.client import (
    Client,
    Document,
    document,
    expect,
    expect_charge,
    expect_error,
    expect_status,
)
from billing_shards.payments.conformance.model import Rule, Trial


async def _waiting_one_is_canceled(client: Client, trial: Trial) -> None:
    body = client.body(trial, trial.requires_action)
    made = await client.charge(body)
    expect_charge(made, body, "requires_action")
    canceled = await _canceled(client, made)
    expect_charge(canceled, body, "canceled")
    expect(canceled["id"] == made["id"], "the same charge", canceled)
    await _expect_found(client, canceled)
    expect(await _canceled(client, made) == canceled, "the same document where it is canceled again", "another one")


async def _made_one_is_left(client: Client, trial: Trial) -> None:
    made = await client.charge(client.body(trial))
    expect(await _canceled(client, made) == made, "the charge as it was", "another document")
    await _expect_found(client, made)
    expect_error(await client.cancel("none-of-this-name"), 404, "invalid_request_error", "resource_missing")


async def _canceled(client: Client, made: Document) -> Document:
    reply = await client.cancel(made["id"])
    expect_status(reply, 200)
    return document(reply.body)


async def _expect_found(client: Client, charge: Document) -> None:
    reply = await client.get(f"/v1/charges/{charge['id']}")
    expect(reply.status == 200 and reply.body == charge, "the same document in the look-up by id", reply)  # noqa: PLR2004
    found = await client.charges_of(charge["reference"])
    expect(found == [charge], "the same document in the look-up by reference", found)


def rules() -> list[Rule]:
    """In the order in which they are tried."""
    waiting = Rule(
        name="cancel.waiting",
        says="a charge that waits for the customer can be canceled, and says so in look-ups",
        check=_waiting_one_is_canceled,
        needs=lambda trial: trial.requires_action is not None,
        wants="--requires-action",
    )
    made = Rule(name="cancel.made", says="a charge that was made is left as it is by a cancel", check=_made_one_is_left)
    return [waiting, made]
