"""The rules of charges, keys and look-ups: each is one promise of docs/gateway-protocol.md, tried by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from billing_shards.payments.conformance.client import (
    Client,
    document,
    expect,
    expect_charge,
    expect_error,
    expect_status,
)
from billing_shards.payments.conformance.model import Rule, Trial

_AT_ONCE = 8
_ADVICE = ("do_not_try_again", "confirm_card_data", "try_again_later", None)
_INVALID: dict[str, tuple[str, Any]] = {
    "no amount": ("amount", 0),
    "less than nothing": ("amount", -1),
    "a fraction": ("amount", 19.99),
    "a text": ("amount", "1999"),
    "true": ("amount", True),
    "small letters": ("currency", "usd"),
    "no currency": ("currency", ""),
    "no payment method": ("payment_method", ""),
    "no reference": ("reference", ""),
    "an unknown field": ("remark", "x"),
    "metadata that is no text": ("metadata", {"service": 7}),
}


async def _is_made(client: Client, trial: Trial) -> None:
    body = client.body(trial, metadata={"service": "conformance"})
    expect_charge(await client.charge(body), body, "succeeded")


async def _metadata_is_optional(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    expect_charge(await client.charge(body), body, "succeeded")


async def _is_replayed(client: Client, trial: Trial) -> None:
    body, key = client.body(trial), client.name()
    first = await client.charge(body, key)
    again = await client.post("/v1/charges", body, key)
    expect(again.status == 200 and again.body == first, "the same answer again", again)  # noqa: PLR2004
    expect(again.headers.get("Idempotent-Replayed") == "true", "the header Idempotent-Replayed: true", dict(again.headers))
    await _expect_one(client, body["reference"])


async def _parameters_are_compared_by_value(client: Client, trial: Trial) -> None:
    body, key = client.body(trial, metadata={"a": "1", "b": "2"}), client.name()
    first = await client.charge(body, key)
    reordered = {**dict(reversed(body.items())), "metadata": {"b": "2", "a": "1"}}
    again = await client.post("/v1/charges", json.dumps(reordered, indent=3), key)
    expect(again.status == 200 and again.body == first, "the same answer, whatever the order of the JSON", again)  # noqa: PLR2004


async def _mismatch_is_refused(client: Client, trial: Trial) -> None:
    body, key = client.body(trial), client.name()
    await client.charge(body, key)
    for changed in ({"amount": trial.amount - 1}, {"reference": f"0/{client.name()}/1"}, {"metadata": {"service": "other"}}):
        reply = await client.post("/v1/charges", {**body, **changed}, key)
        expect_error(reply, 400, "idempotency_error", "idempotency_key_mismatch")
    await _expect_one(client, body["reference"])


async def _many_at_once_make_one(client: Client, trial: Trial) -> None:
    body, key = client.body(trial), client.name()
    replies = await asyncio.gather(*(client.post("/v1/charges", body, key) for _ in range(_AT_ONCE)))
    for reply in replies:
        if reply.status == 409:  # noqa: PLR2004
            expect_error(reply, 409, "idempotency_error", "idempotency_key_in_use")
        else:
            expect_status(reply, 200)
    final = await client.until_answered(body, key)
    expect_status(final, 200)
    for reply in replies:
        expect(reply.status == 409 or reply.body == final.body, "one charge for all", reply)  # noqa: PLR2004
    await _expect_one(client, body["reference"])


async def _survives_a_caller_who_leaves(client: Client, trial: Trial) -> None:
    body, key = client.body(trial), client.name()
    await client.send_and_leave(body, key)
    expect_status(await client.until_answered(body, key), 200)
    await _expect_one(client, body["reference"])


async def _keys_are_needed(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    for key in (None, "k" * 256):
        reply = await client.post("/v1/charges", body, key)
        expect_error(reply, 400, "invalid_request_error", "parameter_invalid")
    expect(await client.charges_of(body["reference"]) == [], "nothing was made", "a charge")


async def _longest_key_is_taken(client: Client, trial: Trial) -> None:
    await client.charge(client.body(trial), client.name().ljust(255, "~"))


async def _keys_are_apart(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    first, second = await client.charge(body), await client.charge(body)
    expect(first.get("id") != second.get("id"), "another key is another charge", second)
    listed = [each.get("id") for each in await client.charges_of(body["reference"])]
    expect(listed == [second["id"], first["id"]], "both in the look-up, newest first", listed)


async def _bad_parameters_are_named(client: Client, trial: Trial) -> None:
    for what, (field, value) in _INVALID.items():
        reply = await client.post("/v1/charges", client.body(trial, **{field: value}), client.name())
        expect_error(reply, 400, "invalid_request_error", "parameter_invalid")
        param = document(document(reply.body)["error"]).get("param")
        expect(isinstance(param, str) and param.startswith(field), f"param must name {field} ({what})", reply)


async def _refusals_are_not_stored(client: Client, trial: Trial) -> None:
    key, body = client.name(), client.body(trial)
    expect_status(await client.post("/v1/charges", {**body, "amount": 0}, key), 400)
    expect(await client.charges_of(body["reference"]) == [], "nothing was made", "a charge")
    expect_charge(await client.charge(body, key), body, "succeeded")


async def _is_found_by_id(client: Client, trial: Trial) -> None:
    made = await client.charge(client.body(trial))
    reply = await client.get(f"/v1/charges/{made['id']}")
    expect(reply.status == 200 and reply.body == made, "the same document", reply)  # noqa: PLR2004
    missing = await client.get("/v1/charges/none-of-this-name")
    expect_error(missing, 404, "invalid_request_error", "resource_missing")


async def _is_found_by_reference(client: Client, trial: Trial) -> None:
    body = client.body(trial, reference=f"0/{client.name()}&limit=1 #+%/1")
    made = await client.charge(body)
    expect(await client.charges_of(body["reference"]) == [made], "exactly the charge of this reference", "another list")
    expect(await client.charges_of(body["reference"] + "0") == [], "an empty list for a reference that nobody used", "a charge")


async def _all_are_listed_in_order(client: Client, trial: Trial) -> None:
    made = [await client.charge(client.body(trial)) for _ in range(3)]
    ids = [each["id"] for each in made]
    reply = await client.get("/v1/charges", starting_after=ids[0], limit="1")
    expect_status(reply, 200)
    page = document(reply.body)
    expect([each.get("id") for each in page.get("data", [])] == ids[1:2], "the one charge that came next", reply)
    expect(page.get("has_more") is True, "has_more must be true where more follow", reply)
    refused = await client.get("/v1/charges", limit="0")
    expect_error(refused, 400, "invalid_request_error", "parameter_invalid")


async def _export_has_every_charge(client: Client, trial: Trial) -> None:
    made = await client.charge(client.body(trial))
    url = f"{client.url}/v1/charges/export"
    async with client.session.get(url, headers=client.authorization(), allow_redirects=False) as response:
        expect(response.status == 200, "expected 200", response.status)  # noqa: PLR2004
        found = [line async for line in response.content if made["id"].encode() in line]
    expect(len(found) == 1 and json.loads(found[0]) == made, "each charge on one line", found)


async def _declines_are_told_in_full(client: Client, trial: Trial) -> None:
    body, key = client.body(trial, trial.declines), client.name()
    reply = await client.post("/v1/charges", body, key)
    expect_status(reply, 402)
    answer = document(reply.body)
    error, charge = document(answer.get("error")), document(answer.get("charge"))
    expect(error.get("type") == "card_error" and error.get("code") == "card_declined", "card_error, card_declined", reply)
    expect(isinstance(error.get("decline_code"), str), "decline_code must be a text", reply)
    expect(error.get("advice_code") in _ADVICE, f"advice_code must be one of {_ADVICE}", reply)
    expect_charge(charge, body, "failed")
    failure = document(charge["failure"])
    same = all(failure.get(name) == error.get(name) for name in ("code", "decline_code", "advice_code"))
    expect(same, "the failure must say what the error says", reply)
    again = await client.post("/v1/charges", body, key)
    expect(again.status == 402 and again.body == reply.body, "the same refusal again", again)  # noqa: PLR2004
    expect(await client.charges_of(body["reference"]) == [charge], "the failed charge in the look-up", "another list")


async def _pending_says_when(client: Client, trial: Trial) -> None:
    body = client.body(trial, trial.pending)
    made = await client.charge(body)
    expect_charge(made, body, "pending")
    seconds = made.get("next_check_seconds")
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0
    expect(fits, "next_check_seconds must be a number", made)
    expect([each.get("id") for each in await client.charges_of(body["reference"])] == [made["id"]], "it is found", "it is not")


async def _customers_action_is_told(client: Client, trial: Trial) -> None:
    body = client.body(trial, trial.requires_action)
    expect_charge(await client.charge(body), body, "requires_action")


async def _keys_to_the_door(client: Client, trial: Trial) -> None:
    body = client.body(trial)
    stranger = Client(client.url, "wrong-" + client.run, client.session)
    for reply in (
        await stranger.post("/v1/charges", body, client.name()),
        await stranger.get("/v1/charges", reference=body["reference"]),
    ):
        expect_error(reply, 401, "authentication_error", "api_key_invalid")
    expect(await client.charges_of(body["reference"]) == [], "nothing was made", "a charge")


async def _expect_one(client: Client, reference: str) -> None:
    charges = await client.charges_of(reference)
    expect(len(charges) == 1, "exactly one charge of this reference", f"{len(charges)}")


def rules(*, api_key: bool) -> list[Rule]:
    """In the order in which they are tried. `api_key`: whether the provider asks for one."""
    made = [
        Rule(name="charge.made", says="a charge is answered with 200 and a document that says what was asked", check=_is_made),
        Rule(name="charge.metadata", says="metadata may be left out", check=_metadata_is_optional),
        Rule(name="key.replayed", says="the same key brings the stored answer and no second charge", check=_is_replayed),
        Rule(name="key.by-value", says="parameters are compared by value", check=_parameters_are_compared_by_value),
        Rule(name="key.mismatch", says="the same key with other parameters is refused", check=_mismatch_is_refused),
        Rule(name="key.at-once", says="many requests at once with one key make one charge", check=_many_at_once_make_one),
        Rule(name="key.left", says="a caller who hangs up gets one charge by sending again", check=_survives_a_caller_who_leaves),
        Rule(name="key.needed", says="a request without a key, or with too long a one, makes nothing", check=_keys_are_needed),
        Rule(name="key.longest", says="a key of 255 characters is taken", check=_longest_key_is_taken),
        Rule(name="key.apart", says="another key is another charge", check=_keys_are_apart),
        Rule(name="request.invalid", says="a bad or unknown field is refused and named", check=_bad_parameters_are_named),
        Rule(name="request.not-stored", says="a refusal is not stored under the key", check=_refusals_are_not_stored),
        Rule(name="find.id", says="a charge is found by its id", check=_is_found_by_id),
        Rule(name="find.reference", says="charges are found by exactly their reference", check=_is_found_by_reference),
        Rule(name="find.pages", says="all charges are paged through in the order of creation", check=_all_are_listed_in_order),
        Rule(name="find.export", says="the export has each charge on one line", check=_export_has_every_charge),
    ]
    declines = Rule(
        name="charge.declined",
        says="a decline is 402 with codes and the failed charge, stored and found",
        check=_declines_are_told_in_full,
        needs=lambda trial: trial.declines is not None,
        wants="--declines",
    )
    pending = Rule(
        name="charge.pending",
        says="a pending charge says when to look again, and is found",
        check=_pending_says_when,
        needs=lambda trial: trial.pending is not None,
        wants="--pending",
    )
    action = Rule(
        name="charge.action",
        says="a charge that waits for the customer says so",
        check=_customers_action_is_told,
        needs=lambda trial: trial.requires_action is not None,
        wants="--requires-action",
    )
    door = Rule(
        name="door.key",
        says="a wrong API key is refused and makes nothing",
        check=_keys_to_the_door,
        needs=lambda _: api_key,
        wants="an API key",
    )
    return [*made, declines, pending, action, door]
