"""The broker in the spec: what is accepted, and which pods see its Secrets."""

from __future__ import annotations

from typing import Any

import pytest

from billing_shards.errors import InvalidSpec
from billing_shards.kube import manifests
from billing_shards.kube.model import Release
from billing_shards.settings import parse_spec
from tests.unit.kube_world import desired, document

BROKER = {"type": "nats", "url": "tls://nats:4222", "credentialsSecret": {"name": "nats"}, "caSecret": {"name": "nats-ca"}}


def with_broker(**changes: Any) -> dict[str, Any]:
    return document(outbox={"broker": {**BROKER, **changes}})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"url": "amqp://rabbit"}, "url must begin with nats:// or tls://"),
        ({"type": "rabbitmq"}, "url must begin with amqp:// or amqps://"),
        ({"url": "nats://user:secret@nats"}, "spec.outbox.broker.url"),
        ({"type": "kafka"}, "spec.outbox.broker.type"),
        ({"stream": "a.b"}, "spec.outbox.broker.stream"),
        ({"confirmSeconds": 0}, "spec.outbox.broker.confirmSeconds"),
        ({"password": "x"}, "spec.outbox.broker.password"),
    ],
)
def test_a_wrong_broker_is_refused_by_its_field_and_nothing_secret_is_repeated(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(with_broker(**changes))
    assert told in str(refused.value)
    assert "secret@" not in str(refused.value)


def test_the_operator_asks_for_the_brokers_secrets() -> None:
    uses = {(use.field, use.secret, use.key) for use in manifests.application_secrets(parse_spec(with_broker()))}
    assert {
        ("spec.outbox.broker.credentialsSecret", "nats", "username"),
        ("spec.outbox.broker.credentialsSecret", "nats", "password"),
        ("spec.outbox.broker.caSecret", "nats-ca", "ca.crt"),
    } <= uses


def test_the_housekeeper_alone_is_given_them() -> None:
    spec, owner = parse_spec(with_broker()), desired(outbox={"broker": BROKER})
    release = Release(image="image", revision="0005")

    def secrets(manifest: dict[str, Any]) -> set[str]:
        volumes = manifest["spec"]["template"]["spec"]["volumes"]
        return {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}

    assert secrets(manifests.housekeeper(owner, spec, release)) - secrets(manifests.claimer(owner, spec, release, (0, 3), 1)) == {
        "nats",
        "nats-ca",
    }
