"""The conformance test of providers: the fake gateway keeps every rule, and one that breaks a rule is told which.

The wrong providers are the fake one behind a proxy that spoils one thing. The OpenAPI file is held against what the fake answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
import yaml
from aiohttp import web
from jsonschema_rs import Draft202012Validator

from billing_shards.cli import main
from billing_shards.cli.codes import ExitCode
from billing_shards.payments.conformance import charges, webhooks
from billing_shards.payments.conformance.client import Client
from billing_shards.payments.conformance.client import session as new_session
from billing_shards.payments.conformance.model import Broken, Rule, Trial, Verdict
from billing_shards.payments.conformance.run import _result, check
from billing_shards.payments.conformance.run import rules as all_rules
from billing_shards.payments.conformance.webhooks import Listener
from hack.fake_gateway import FakeGateway
from hack.fake_gateway.process import ROOT

KEY = "sk_test_sentinel_7f3a"
TRIAL = Trial(succeeds="pm_card", declines="pm_decline_do_not_honor", pending="pm_pending", requires_action="pm_requires_action")
OF_WEBHOOKS = {rule.name for rule in webhooks.rules()}
EVERY_RULE = {rule.name for rule in all_rules(api_key=True)}
HEARD_RULES = EVERY_RULE - OF_WEBHOOKS
SECRET = "whsec_7f3a"
OPENAPI = ROOT / "docs" / "gateway-openapi.yaml"


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Commands point the logs at stderr, which is another one in the next test."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGateway]:
    with FakeGateway.start(tmp_path_factory.mktemp("gateway"), api_key=KEY, delay_ms=2) as started:
        yield started


async def verdicts(url: str, trial: Trial = TRIAL, api_key: str | None = KEY) -> dict[str, tuple[Verdict, str]]:
    results = {}
    async with aclosing(check(url, api_key, trial)) as checked:
        async for result in checked:
            results[result.rule] = (result.verdict, result.detail)
    return results


def broken(results: dict[str, tuple[Verdict, str]]) -> set[str]:
    return {rule for rule, (verdict, _) in results.items() if verdict is Verdict.BROKEN}


# The fake keeps all


def test_the_fake_gateway_keeps_every_rule(provider: FakeGateway) -> None:
    results = asyncio.run(verdicts(provider.url))
    assert {rule for rule, (verdict, _) in results.items() if verdict is Verdict.KEPT} == HEARD_RULES, results


def test_what_cannot_be_tried_is_skipped_and_says_what_it_needs(provider: FakeGateway) -> None:
    provider.configure(api_key=None)
    try:
        results = asyncio.run(verdicts(provider.url, Trial(succeeds="pm_card", refunds=False), None))
    finally:
        provider.configure(api_key=KEY)
    skipped = {rule: detail for rule, (verdict, detail) in results.items() if verdict is Verdict.SKIPPED}
    assert broken(results) == set()
    assert skipped == {
        "charge.declined": "needs --declines",
        "charge.pending": "needs --pending",
        "charge.action": "needs --requires-action",
        "cancel.waiting": "needs --requires-action",
        "door.key": "needs an API key",
        "refund.declined": "needs --declines",
        **dict.fromkeys(
            ("refund.made", "refund.keyed", "refund.sum", "refund.at-once", "refund.invalid"), "needs a provider that refunds"
        ),
        **dict.fromkeys(("webhook.told", "webhook.signed", "webhook.again"), "needs --webhook-port"),
        "webhook.declined": "needs --webhook-port and --declines",
        "webhook.refunded": "needs --webhook-port and a provider that refunds",
    }


# Wrong providers


class Exchange:
    """A request on its way to the fake gateway and back; each may be changed."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method = request.method
        self.path = request.path
        self.query = dict(request.query)
        self.headers = {
            name: value for name, value in request.headers.items() if name in {"Idempotency-Key", "Authorization", "Content-Type"}
        }
        self.body = body
        self.status = 0
        self.answer: Any = None
        self.answer_headers: dict[str, str] = {}

    @property
    def is_charge(self) -> bool:
        return (self.method, self.path) == ("POST", "/v1/charges")

    @property
    def is_cancel(self) -> bool:
        return self.method == "POST" and self.path.endswith("/cancel")


Spoil = Callable[[Exchange], None]


def nothing(_: Exchange) -> None:
    pass


async def through_proxy(url: str, before: Spoil, after: Spoil, trial: Trial = TRIAL) -> dict[str, tuple[Verdict, str]]:
    """The verdicts on the fake gateway behind a proxy that spoils its requests or its answers."""

    async def handle(request: web.Request) -> web.Response:
        exchange = Exchange(request, await request.read())
        before(exchange)
        async with session.request(
            exchange.method, url + exchange.path, params=exchange.query, headers=exchange.headers, data=exchange.body
        ) as response:
            exchange.status, text = response.status, await response.text()
            exchange.answer_headers = {
                name: value for name, value in response.headers.items() if name in {"Idempotent-Replayed", "Retry-After"}
            }
        try:
            exchange.answer = json.loads(text)
        except ValueError:  # the export: lines
            return web.Response(text=text)
        after(exchange)
        return web.json_response(exchange.answer, status=exchange.status, headers=exchange.answer_headers)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", handle)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return await verdicts(f"http://127.0.0.1:{runner.addresses[0][1]}", trial)
        finally:
            await runner.cleanup()


def forgets_keys(exchange: Exchange) -> None:
    if "Idempotency-Key" in exchange.headers and len(exchange.headers["Idempotency-Key"]) <= 255:
        exchange.headers["Idempotency-Key"] = secrets.token_hex(16)


def overlooks_the_reference(exchange: Exchange) -> None:
    exchange.query.pop("reference", None)


def opens_to_anybody(exchange: Exchange) -> None:
    exchange.headers["Authorization"] = f"Bearer {KEY}"


def overlooks_unknown_fields(exchange: Exchange) -> None:
    if exchange.is_charge and exchange.body.startswith(b'{"amount"'):
        body = json.loads(exchange.body)
        body.pop("remark", None)
        exchange.body = json.dumps(body).encode()


def makes_keys_up(exchange: Exchange) -> None:
    if exchange.method == "POST":
        exchange.headers.setdefault("Idempotency-Key", secrets.token_hex(16))
        exchange.headers["Idempotency-Key"] = exchange.headers["Idempotency-Key"][-255:]


def does_not_say_that_it_replays(exchange: Exchange) -> None:
    exchange.answer_headers.pop("Idempotent-Replayed", None)


def declines_with_200(exchange: Exchange) -> None:
    if exchange.status == 402:
        exchange.status, exchange.answer = 200, exchange.answer["charge"]


def answers_in_major_units(exchange: Exchange) -> None:
    if exchange.is_charge and exchange.status == 200:
        exchange.answer["amount"] = exchange.answer["amount"] / 100


def refunds_without_bound(exchange: Exchange) -> None:
    if exchange.path == "/v1/refunds" and exchange.status == 400 and exchange.answer["error"]["code"] == "refund_too_large":
        exchange.status, exchange.answer = 200, {**json.loads(exchange.body), "id": "re_x", "status": "succeeded"}


def hides_failed_charges(exchange: Exchange) -> None:
    if exchange.path == "/v1/charges" and exchange.method == "GET" and "data" in exchange.answer:
        exchange.answer["data"] = [each for each in exchange.answer["data"] if each["status"] != "failed"]


def says_all_pages_are_the_last(exchange: Exchange) -> None:
    if "has_more" in exchange.answer:
        exchange.answer["has_more"] = False


def does_not_say_when_to_look_again(exchange: Exchange) -> None:
    exchange.answer.pop("next_check_seconds", None)


def gives_no_codes(exchange: Exchange) -> None:
    if "error" in exchange.answer:
        exchange.answer["error"].pop("code", None)


def only_looks_where_it_should_cancel(exchange: Exchange) -> None:
    if exchange.is_cancel:
        exchange.method, exchange.path = "GET", exchange.path.removesuffix("/cancel")


def looks_up_what_was(exchange: Exchange) -> None:
    if exchange.method == "GET" and exchange.answer.get("status") == "canceled":
        exchange.answer["status"] = "requires_action"


def lists_what_was(exchange: Exchange) -> None:
    for each in exchange.answer.get("data", []):
        each["status"] = each["status"].replace("canceled", "requires_action")


def calls_a_cancel_a_decline(exchange: Exchange) -> None:
    if exchange.answer.get("status") == "canceled":
        exchange.answer["failure"] = {"code": "canceled"}


class RefusesTheSecondCancel:
    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, exchange: Exchange) -> None:
        if exchange.is_cancel and exchange.path in self._seen:
            exchange.status, exchange.answer = 400, {"error": {"type": "invalid_request_error"}}
        self._seen.add(exchange.path)


def refuses_to_cancel_what_was_made(exchange: Exchange) -> None:
    if exchange.is_cancel and exchange.answer.get("status") == "succeeded":
        exchange.status, exchange.answer = 400, {"error": {"type": "invalid_request_error"}}


def calls_what_was_made_canceled(exchange: Exchange) -> None:
    if exchange.is_cancel and exchange.status == 200:
        exchange.answer["status"] = "canceled"


class TakesBackWhatItCancels:
    """The money of a charge that was made is given back by a cancel, though its answer says otherwise."""

    def __init__(self) -> None:
        self._canceled: set[str] = set()

    def __call__(self, exchange: Exchange) -> None:
        if exchange.is_cancel:
            self._canceled.add(exchange.path.split("/")[-2])
        elif exchange.answer.get("id") in self._canceled and exchange.answer["status"] == "succeeded":
            exchange.answer["status"] = "reversed"


def cancels_what_is_not_there(exchange: Exchange) -> None:
    if exchange.is_cancel and exchange.status == 404:
        exchange.status, exchange.answer = 200, {}


FORGETFUL = {"key.replayed", "key.by-value", "key.mismatch", "key.at-once", "charge.declined", "refund.keyed"}


@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        (forgets_keys, nothing, FORGETFUL | {"key.left"}),
        (makes_keys_up, nothing, {"key.needed"}),
        (opens_to_anybody, nothing, {"door.key"}),
        (overlooks_unknown_fields, nothing, {"request.invalid"}),
        (nothing, does_not_say_that_it_replays, {"key.replayed"}),
        (nothing, declines_with_200, {"charge.declined", "refund.declined"}),
        (nothing, refunds_without_bound, {"refund.sum", "refund.at-once", "refund.invalid"}),
        (nothing, hides_failed_charges, {"charge.declined"}),
        (nothing, says_all_pages_are_the_last, {"find.pages"}),
        (nothing, does_not_say_when_to_look_again, {"charge.pending"}),
        (only_looks_where_it_should_cancel, nothing, {"cancel.waiting"}),
        (nothing, looks_up_what_was, {"cancel.waiting"}),
        (nothing, lists_what_was, {"cancel.waiting"}),
        (nothing, calls_a_cancel_a_decline, {"cancel.waiting"}),
        (nothing, RefusesTheSecondCancel(), {"cancel.waiting"}),
        (nothing, refuses_to_cancel_what_was_made, {"cancel.made"}),
        (nothing, calls_what_was_made_canceled, {"cancel.made"}),
        (nothing, TakesBackWhatItCancels(), {"cancel.made"}),
        (nothing, cancels_what_is_not_there, {"cancel.made"}),
    ],
)
def test_a_wrong_provider_is_told_what_it_breaks(provider: FakeGateway, before: Spoil, after: Spoil, rules: set[str]) -> None:
    results = asyncio.run(through_proxy(provider.url, before, after))
    assert broken(results) == rules
    assert all(detail for verdict, detail in results.values() if verdict is Verdict.BROKEN)


@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        (overlooks_the_reference, nothing, {"find.reference", "key.replayed", "key.needed", "refund.made"}),
        (nothing, answers_in_major_units, {"charge.made", "charge.metadata", "charge.pending", "charge.action"}),
        (nothing, gives_no_codes, {"key.mismatch", "key.needed", "request.invalid", "charge.declined", "refund.sum", "door.key"}),
    ],
)
def test_what_is_wrong_everywhere_is_found_at_many_places(
    provider: FakeGateway, before: Spoil, after: Spoil, rules: set[str]
) -> None:
    assert broken(asyncio.run(through_proxy(provider.url, before, after))) >= rules


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(text="<html>Bad gateway</html>", status=502, content_type="text/html"),
        lambda: web.json_response([]),
        lambda: web.json_response(None),
        lambda: web.json_response({"data": [7], "error": [], "id": {}, "status": 0}),
        lambda: web.Response(body=b"\xff\xfe"),
    ],
)
def test_a_stranger_breaks_every_rule_and_ends_none(answer: Callable[[], web.Response]) -> None:
    async def body() -> dict[str, tuple[Verdict, str]]:
        async def handle(_: web.Request) -> web.Response:
            return answer()

        return await with_server(handle, verdicts)

    assert broken(asyncio.run(body())) == HEARD_RULES


async def with_server(
    handle: Callable[[web.Request], Awaitable[web.Response]],
    body: Callable[[str], Awaitable[dict[str, tuple[Verdict, str]]]],
) -> dict[str, tuple[Verdict, str]]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return await body(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def test_a_provider_that_is_not_there_breaks_every_rule() -> None:
    results = asyncio.run(verdicts("http://127.0.0.1:1"))
    assert broken(results) == HEARD_RULES
    assert "no answer" in results["charge.made"][1]


# Webhooks


def of_webhooks(provider: FakeGateway, seconds: float = 30, **config: Any) -> dict[str, tuple[Verdict, str]]:
    """The verdicts on the webhooks of the fake gateway, while it is configured so."""

    async def main() -> dict[str, tuple[Verdict, str]]:
        listener = Listener(SECRET.encode(), seconds=seconds)
        async with listener.serve(0) as port:
            url = f"http://127.0.0.1:{port}/hooks"
            known = {"webhook_url": url, "webhook_secrets": [SECRET], "webhook_retry_seconds": 0.05}
            await asyncio.to_thread(provider.configure, **{**known, **config})
            client = Client(provider.url, KEY, new_session())
            trial = replace(TRIAL, listener=listener)
            async with client.session:
                return {rule.name: await tried(rule, client, trial) for rule in webhooks.rules()}

    try:
        return asyncio.run(main())
    finally:
        provider._call("PUT", "/admin/config", {"api_key": KEY, "delay_ms": 2})


async def tried(rule: Rule, client: Client, trial: Trial) -> tuple[Verdict, str]:
    result = await _result(rule, client, trial)
    return result.verdict, result.detail


def test_the_fake_gateways_webhooks_keep_every_rule(provider: FakeGateway) -> None:
    results = of_webhooks(provider, webhook_duplicate_rate=0.5)
    assert {verdict for verdict, _ in results.values()} == {Verdict.KEPT}, results


@pytest.mark.parametrize(
    ("config", "seconds", "rules"),
    [
        ({"webhook_lost_rate": 1}, 0.3, OF_WEBHOOKS),
        ({"webhook_secrets": ["whsec_wrong"]}, 30, {"webhook.signed"}),
        ({"webhook_secrets": []}, 30, {"webhook.signed"}),
        ({"webhook_retry_seconds": 3600}, 4, {"webhook.again"}),
    ],
)
def test_webhooks_that_do_not_come_or_prove_nothing_are_told(
    provider: FakeGateway, config: dict[str, Any], seconds: float, rules: set[str]
) -> None:
    results = of_webhooks(provider, seconds, **config)
    assert broken(results) == rules
    if rules == OF_WEBHOOKS:
        assert results["webhook.told"][1] == "1 deliveries of charge.succeeded within 0.3 s; came 0"


def test_a_provider_that_lists_nothing_or_sends_no_events_is_told_so(provider: FakeGateway) -> None:
    def lists_nothing(exchange: Exchange) -> None:
        if "data" in exchange.answer:
            exchange.answer = {"data": None}

    results = asyncio.run(through_proxy(provider.url, nothing, lists_nothing))
    assert results["find.reference"] == (Verdict.BROKEN, 'expected a list under data; came 200 {"data": null}')

    async def hear() -> str:
        listener = Listener(b"", seconds=0.2)
        async with listener.serve(0) as port, aiohttp.ClientSession() as opened:
            async with opened.post(f"http://127.0.0.1:{port}/", json={"no": "event"}) as response:
                assert response.status == 400
            with pytest.raises(Broken) as broken_rule:
                await listener.deliveries("charge.succeeded", "7/1/1", 1)
        return str(broken_rule.value)

    assert "1 that are no events (webhook.id: must be" in asyncio.run(hear())


# The command


def test_the_command_reports_each_rule(provider: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    arguments = ["gateway", "check", "--url", provider.url, "--api-key-file", str(key), "--no-refunds"]
    assert main([*arguments, "--succeeds", "pm_decline_do_not_honor"]) == ExitCode.PROBLEMS
    shown = capsys.readouterr().out
    assert "FAIL  charge.made: " in shown
    assert "skip  refund.made: " in shown
    assert KEY not in shown


def test_the_command_takes_a_provider_from_a_manifest(
    provider: FakeGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "set.yaml"
    database = {"name": "a", "host": "h", "credentialsSecret": {"name": "s"}, "schemaSecret": {"name": "s"}}
    own = {"name": "own", "url": provider.url, "apiKeySecret": {"name": "provider"}}
    stripe = {"name": "stripe", "type": "stripe", "url": "https://api.stripe.com"}
    spec = {"databases": [database], "gateway": own, "gateways": [stripe]}
    manifest.write_text(
        yaml.safe_dump_all(
            [
                {"kind": "BillingShardSet", "metadata": {"name": "main"}, "spec": spec},
                {"kind": "Secret", "metadata": {"name": "provider"}, "stringData": {"apiKey": KEY}},
            ]
        )
    )
    arguments = ["gateway", "check", "--manifest", str(manifest), "--succeeds", "pm_card"]
    assert main([*arguments, "--json"]) == ExitCode.OK
    assert {rule["name"] for rule in json.loads(capsys.readouterr().out)["rules"]} == EVERY_RULE
    assert main([*arguments, "--gateway", "stripe"]) == ExitCode.BAD_INPUT
    assert main([*arguments, "--gateway", "nobody"]) == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "ftp://x"],
        ["--url", "http://x", "--api-key-file", "/nowhere/key"],
        ["--url", "http://x", "--amount", "1"],
        ["--url", "http://x", "--webhook-port", "4242"],
        ["--url", "http://x", "--webhook-port", "4242", "--webhook-secret-file", "/nowhere/secret"],
    ],
)
def test_a_wrong_option_is_named(arguments: list[str]) -> None:
    assert main(["gateway", "check", "--succeeds", "pm_card", *arguments]) == ExitCode.BAD_INPUT


# The OpenAPI file


@cache
def openapi() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(OPENAPI.read_text())
    return document


def schema(name: str) -> Draft202012Validator:
    document = openapi()
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


def resolved(document: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    name = response.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["responses"][name] if name else response
    return found


def schema_of(content: dict[str, Any]) -> str:
    name: str = content["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return name


def described_path(path: str, paths: dict[str, Any]) -> str:
    """`/v1/charges/{id}/cancel` for `/v1/charges/ch_x/cancel`."""
    if path in paths:
        return path
    _, version, kind, _, *act = path.split("/")
    return "/".join(["", version, kind, "{id}", *act])


def test_the_openapi_file_describes_what_the_fake_answers(provider: FakeGateway) -> None:
    """Every request of the conformance test, and every answer to it."""
    document = openapi()
    paths, validators = document["paths"], {name: schema(name) for name in document["components"]["schemas"]}
    seen: set[tuple[str, str, int]] = set()
    problems: list[tuple[str, str, str]] = []

    def look(exchange: Exchange) -> None:
        path = described_path(exchange.path, paths)
        operation = paths[path][exchange.method.lower()]
        name = schema_of(resolved(document, operation["responses"][str(exchange.status)]))
        problems.extend((path, name, error.message) for error in validators[name].iter_errors(exchange.answer))
        if exchange.status == 200 and "requestBody" in operation:
            validators[schema_of(operation["requestBody"])].validate(json.loads(exchange.body))
        seen.add((exchange.method, path, exchange.status))

    assert broken(asyncio.run(through_proxy(provider.url, nothing, look))) == set()
    assert problems == []
    described = {
        (method.upper(), path, int(status))
        for path, operations in paths.items()
        for method, operation in operations.items()
        for status, response in operation["responses"].items()
        if "application/json" in resolved(document, response)["content"]
    }
    assert {status for _, _, status in described - seen} <= {400, 401, 404, 409, 429, 500}


def test_the_openapi_file_refuses_what_the_protocol_refuses() -> None:
    good = {"amount": 1, "currency": "USD", "payment_method": "pm", "reference": "1/1/1"}
    schema("ChargeRequest").validate(good)
    for field, value in charges._INVALID.values():
        assert not schema("ChargeRequest").is_valid({**good, field: value}), (field, value)
