"""Envelopes and schemas: what a consumer gets, and that every event the code can write has a contract."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from billing_shards.db import SQL, queries
from billing_shards.errors import EventRefused
from billing_shards.outbox import envelope
from billing_shards.outbox.model import Message, Problem, StoredEvent

SOURCES = Path(envelope.__file__).parents[1]
ISSUED = {"invoice": 1, "amount": 990, "currency": "USD", "period_start": "2024-01-31", "period_end": "2024-02-29"}


def stored(kind: str = "invoice.issued", **payload: Any) -> StoredEvent:
    return StoredEvent(
        shard=3,
        number=17,
        type=kind,
        subscription="sub-1",
        payload={**ISSUED, **payload},
        created_at=datetime(2026, 3, 1, 12, 0, 0, 5),
    )


def sent(event: StoredEvent, bytes_max: int = 10_000) -> Message:
    return envelope.message("main", event, bytes_max=bytes_max)


def test_a_cloudevents_reader_understands_the_envelope() -> None:
    message = sent(stored())
    read = from_http_event(HTTPMessage(headers={"content-type": envelope.CONTENT_TYPE}, body=message.body))
    assert read.get_id() == message.id == "main/3/17"
    assert read.get_type() == "io.billingshards.invoice.issued.v1"
    assert read.get_source() == "/billing-shards/main"
    assert read.get_subject() == read.get_extension("partitionkey") == "sub-1"
    assert read.get_time() == datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
    assert read.get_dataschema() == "urn:billing-shards:event:invoice.issued:v1"
    assert read.get_extension("sequence") == "00000000000000000017"
    assert read.get_extension("shard") == 3
    assert read.get_data() == ISSUED
    assert message.subject == "003.invoice.issued"


def test_the_same_event_is_the_same_message_however_often_it_is_made() -> None:
    assert sent(stored()) == sent(stored())


@pytest.mark.parametrize(
    ("event", "problem", "told"),
    [
        (stored(amount=0), Problem.SCHEMA, "amount"),
        (stored(currency="dollars"), Problem.SCHEMA, "currency"),
        (stored(period_start="2024-02-31"), Problem.SCHEMA, "period_start"),
        (stored("invoice.vanished"), Problem.SCHEMA, "invoice.vanished"),
        (stored("invoice.issued.v2"), Problem.SCHEMA, "invoice.issued.v2"),
        (stored("../invoice.issued"), Problem.SCHEMA, "has no schema"),
        (stored(note="x" * 20_000), Problem.TOO_LARGE, "10000"),
    ],
)
def test_what_cannot_be_sent_says_why_without_its_values(event: StoredEvent, problem: Problem, told: str) -> None:
    with pytest.raises(EventRefused) as refused:
        sent(event)
    assert refused.value.problem == problem
    assert told in refused.value.details
    assert "dollars" not in refused.value.details


def test_a_type_that_names_its_version_is_held_against_that_one() -> None:
    assert json.loads(sent(stored("invoice.issued.v1")).body)["type"] == "io.billingshards.invoice.issued.v1"


@pytest.mark.parametrize("name", sorted(envelope.catalogue()))
def test_schemas_are_sound_and_say_what_they_are(name: str) -> None:
    document = dict(envelope.catalogue()[name].document)
    jsonschema_rs.meta.validate(document)
    kind, _, version = name.rpartition(".")
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["$id"] == f"urn:billing-shards:event:{kind}:{version}"
    assert document["title"] == kind
    assert len(document["description"]) > 10
    assert set(document["required"]) <= set(document["properties"])
    assert all(one.get("description") for one in document["properties"].values())
    assert len(kind) <= 63  # the column's width


def written_types() -> Iterator[tuple[str, str]]:
    """(where, type) of every event that the code constructs, in Python or in SQL."""
    for noun in sorted(path.stem for path in (SQL / "queries").glob("*.sql")):
        for name in queries(noun):
            text = getattr(queries(noun), name)
            if "INSERT INTO outbox " in text:
                yield from ((f"{noun}.sql:{name}", kind) for kind in re.findall(r"'([a-z_]+\.[a-z_]+)'", text))
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text()
        if "from billing_shards.outbox" not in source and path.parent.name != "outbox":
            continue
        tree = ast.parse(source)
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for kind in _types_in(function):
                    yield f"{path.name}:{function.name}", kind


def _types_in(function: ast.FunctionDef) -> Iterator[str]:
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"Event", "events.Event"}:
            (value,) = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
            yield from _values(value, function)


def _values(value: ast.expr, function: ast.FunctionDef) -> list[str]:
    """Every text that an expression can be, of those forms that the code uses; no other form is allowed."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name):
            found = [text for one in ast.walk(function) for text in _assigned(one, name, function)]
            assert found, f"{function.name}: nobody can tell what {name} is"
            return found
        case ast.JoinedStr(values=[ast.Constant(value=str(prefix)), ast.FormattedValue(value=inner)]):
            return [prefix + text for text in _values(inner, function)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_values(body, function), *_values(orelse, function)]
        case _:
            raise AssertionError(f"{function.name}: nobody can tell what {ast.unparse(value)} is")


def _assigned(node: ast.AST, name: str, function: ast.FunctionDef) -> list[str]:
    if not isinstance(node, ast.Assign):
        return []
    (target,) = node.targets
    pairs = zip(target.elts, node.value.elts, strict=True) if _is_unpacking(target, node.value) else [(target, node.value)]  # type: ignore[attr-defined]
    return [text for to, value in pairs if isinstance(to, ast.Name) and to.id == name for text in _values(value, function)]


def _is_unpacking(target: ast.expr, value: ast.expr) -> bool:
    return isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)


def test_every_event_that_the_code_can_write_has_a_schema() -> None:
    written = list(written_types())
    assert {"invoice.issued", "payment.succeeded", "subscription.past_due"} <= {kind for _, kind in written}
    assert not [(where, kind) for where, kind in written if envelope.schema_of(kind) is None]
