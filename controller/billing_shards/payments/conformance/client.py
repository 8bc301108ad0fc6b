"""Requests of the conformance test, and what is expected of their answers. Everything it makes bears a mark of its own."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from billing_shards.payments.conformance.model import Broken, Trial

_ANSWER_SECONDS = 60.0
_SETTLED_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_SHOWN = 200
_RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_REF = re.compile(r"[!-~]{1,128}")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that came."""

    status: int
    headers: Mapping[str, str]
    body: Any
    """The JSON it holds; the text where it holds none."""

    def __str__(self) -> str:
        return f"{self.status} {json.dumps(self.body)[:_SHOWN]}"


@dataclass(slots=True)
class Client:
    """One run against one provider."""

    url: str
    api_key: str | None
    session: aiohttp.ClientSession
    run: str = field(default_factory=lambda: secrets.token_hex(6))
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def name(self) -> str:
        """A key, and part of a reference, that nobody has used before."""
        return f"conformance-{self.run}-{next(self._numbers)}"

    def body(self, trial: Trial, payment_method: str | None = None, **fields: Any) -> Document:
        """A charge that the protocol has nothing against, with these fields changed."""
        known = {
            "amount": trial.amount,
            "currency": trial.currency,
            "payment_method": trial.succeeds if payment_method is None else payment_method,
            "reference": f"0/{self.name()}/1",
        }
        return {**known, **fields}

    async def post(self, path: str, body: Any, key: str | None, **headers: str) -> Reply:
        """`body` is a document, or the text of one. Raises `Broken` where no answer comes."""
        content = body if isinstance(body, str) else json.dumps(body)
        sent = {"Content-Type": "application/json", **({} if key is None else {"Idempotency-Key": key}), **headers}
        return await self._send("POST", path, data=content, headers=sent)

    async def get(self, path: str, **query: str) -> Reply:
        """Raises `Broken` where no answer comes."""
        return await self._send("GET", path, params=query)

    async def _send(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **content: Any) -> Reply:
        sent = {**self.authorization(), **(headers or {})}
        try:
            async with self.session.request(method, self.url + path, headers=sent, allow_redirects=False, **content) as response:
                text = await response.text()
                return Reply(status=response.status, headers=response.headers, body=_json(text))
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise Broken(f"no answer to {method} {path}: {type(error).__name__}") from error

    def authorization(self) -> dict[str, str]:
        """The header that opens the door, where there is a key."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    async def charge(self, body: Document, key: str | None = None) -> Document:
        """A charge that must be made: its document."""
        reply = await self.post("/v1/charges", body, key or self.name())
        expect_status(reply, 200)
        made = document(reply.body)
        expect(isinstance(made.get("id"), str), "a charge has an id", reply)
        return made

    async def cancel(self, charge_id: str) -> Reply:
        """Ask that a charge is not completed any more. Raises `Broken` where no answer comes."""
        return await self._send("POST", f"/v1/charges/{quote(charge_id, safe='')}/cancel")

    async def charges_of(self, reference: str) -> list[Document]:
        """What the look-up by reference lists."""
        return await self._listed("/v1/charges", reference=reference)

    async def refunds_of(self, **query: str) -> list[Document]:
        """What the look-up of refunds lists."""
        return await self._listed("/v1/refunds", **query)

    async def _listed(self, path: str, **query: str) -> list[Document]:
        reply = await self.get(path, **query)
        expect_status(reply, 200)
        data = document(reply.body).get("data")
        if not isinstance(data, list):
            raise Broken(f"expected a list under data; came {reply}")
        return [document(each) for each in data]

    async def until_answered(self, body: Document, key: str) -> Reply:
        """The same key again while a request with it is being worked on."""
        async with asyncio.timeout(_SETTLED_SECONDS):
            while (reply := await self.post("/v1/charges", body, key)).status == 409:  # noqa: PLR2004, ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
        return reply

    async def send_and_leave(self, body: Document, key: str) -> None:
        """Send a charge and hang up without waiting for its answer. Raises `Broken` where the provider is not reached."""
        url = urlsplit(self.url + "/v1/charges")
        content = json.dumps(body).encode()
        headers = {
            "Host": url.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Idempotency-Key": key,
            **self.authorization(),
        }
        head = f"POST {url.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        secure = url.scheme == "https"
        try:
            _, writer = await asyncio.open_connection(url.hostname, url.port or (443 if secure else 80), ssl=secure or None)
            writer.write(head.encode() + b"\r\n" + content)
            await writer.drain()
            writer.close()
        except OSError as error:
            raise Broken(f"not reached: {type(error).__name__}") from error


def session() -> aiohttp.ClientSession:
    """For one run; of the running event loop."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS), cookie_jar=aiohttp.DummyCookieJar())


def expect(condition: bool, expected: str, came: object) -> None:
    """Raises `Broken` where the condition does not hold."""
    if not condition:
        raise Broken(f"{expected}; came {str(came)[:_SHOWN]}")


def expect_status(reply: Reply, *statuses: int) -> None:
    """Raises `Broken` where the answer has another status."""
    expect(reply.status in statuses, f"expected {' or '.join(map(str, statuses))}", reply)


def expect_error(reply: Reply, status: int, kind: str, code: str) -> None:
    """Raises `Broken` where the answer is not this error, with a message for a person."""
    expect_status(reply, status)
    error = document(reply.body).get("error")
    expect(
        isinstance(error, dict)
        and error.get("type") == kind
        and error.get("code") == code
        and isinstance(error.get("message"), str),
        f"expected an error with type {kind}, code {code} and a message",
        reply,
    )


def expect_charge(charge: Document, body: Document, *statuses: str) -> None:
    """Raises `Broken` where the document does not say what was asked for, or lacks a field."""
    for name in ("amount", "currency", "payment_method", "reference"):
        expect(charge.get(name) == body[name] and type(charge.get(name)) is type(body[name]), f"{name} must be as sent", charge)
    expect(charge.get("metadata") == body.get("metadata", {}), "metadata must be as sent", charge)
    expect(charge.get("status") in statuses, f"status must be {' or '.join(statuses)}", charge)
    expect_named(charge)
    expect("failure" in charge and (charge["failure"] is None or charge["status"] == "failed"), "failure must be null", charge)


def expect_named(made: Document) -> None:
    """Raises `Broken` where a charge or refund has no name and birthday that can be kept."""
    expect(isinstance(made.get("id"), str) and bool(_REF.fullmatch(made["id"])), "id must be 1 to 128 printable characters", made)
    created = made.get("created")
    expect(isinstance(created, str) and bool(_RFC3339_UTC.fullmatch(created)), "created must be RFC 3339 in UTC", made)


def document(value: object) -> Document:
    """The JSON object that it is. Raises `Broken` where it is none."""
    if not isinstance(value, dict):
        raise Broken(f"expected a JSON object; came {str(value)[:_SHOWN]}")
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
