"""What a person writes is taken whole or refused with field and reason, and a refusal never repeats a value."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from billing_shards.errors import InvalidInput, InvalidSpec
from billing_shards.settings import Credentials, Manifest, ProcessSettings, parse_spec
from billing_shards.shards.shardset import FolderSecrets, ManifestSecrets, credentials

SENTINEL = "sentinel-7f3a"


def document() -> dict[str, Any]:
    database = {"name": "a", "host": "db", "credentialsSecret": {"name": "app"}, "schemaSecret": {"name": "owner"}}
    return {"databases": [database, {**database, "name": "b"}], "gateway": {"url": "http://gateway"}}


def test_a_spec_of_what_must_be_given_has_the_documented_defaults() -> None:
    spec = parse_spec(document())
    assert (spec.shard_count, spec.shard_map, spec.paused) == (256, None, False)
    assert (spec.database("a").port, spec.database("a").database, spec.database("a").weight) == (3306, "billing", 1)
    assert spec.database("a").tls.mode == "verify"
    assert (spec.claimer.batch, spec.claimer.workers, spec.claimer.lease_seconds) == (500, 200, 300)
    assert (spec.gateway.timeout_seconds, spec.gateway.key_ttl_seconds) == (30, 86_400)
    assert spec.migration.approval == "manual"


def test_a_spec_survives_the_way_through_the_config_map() -> None:
    spec = parse_spec({**document(), "shardMap": [{"from": 0, "to": 255, "database": "b"}], "paused": True})
    assert parse_spec(json.loads(spec.model_dump_json(by_alias=True))) == spec


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (lambda spec: spec.pop("gateway"), "spec.gateway", "required"),
        (lambda spec: spec.update(shards=8), "spec.shards", "not permitted"),
        (lambda spec: spec.update(shardCount=257), "spec.shardCount", "256"),
        (lambda spec: spec.update(shardCount=0), "spec.shardCount", "1"),
        (lambda spec: spec.update(databases=[]), "spec.databases", "at least 1"),
        (lambda spec: spec["databases"][1].update(name="a"), "spec", "databases: each name must be given once"),
        (lambda spec: spec["databases"][1].update(name="B_"), "spec.databases[1].name", "pattern"),
        (lambda spec: spec["databases"][1].update(port=70_000), "spec.databases[1].port", "65535"),
        (lambda spec: spec["databases"][0].update(database="a`b"), "spec.databases[0].database", "pattern"),
        (
            lambda spec: spec["databases"][0].update(tls={"mode": "prefer"}),
            "spec.databases[0].tls.mode",
            "'verify' or 'disabled'",
        ),
        (lambda spec: spec["databases"][0].pop("schemaSecret"), "spec.databases[0].schemaSecret", "required"),
        (lambda spec: spec["gateway"].update(url="ftp://gateway"), "spec.gateway.url", "pattern"),
        (lambda spec: spec["gateway"].update(timeoutSeconds=0), "spec.gateway.timeoutSeconds", "greater than 0"),
        (lambda spec: spec.update(claimer={"minReplicas": 5}), "spec.claimer", "minReplicas must not exceed maxReplicas"),
        (lambda spec: spec.update(retry={"delaysSeconds": []}), "spec.retry.delaysSeconds", "at least 1"),
        (
            lambda spec: spec.update(retry={"delaysSeconds": [300, 0]}),
            "spec.retry.delaysSeconds[1]",
            "greater than or equal to 1",
        ),
        (lambda spec: spec.update(shardMap=[{"from": 0, "to": 256, "database": "a"}]), "spec.shardMap[0].to", "less than 256"),
    ],
)
def test_a_wrong_spec_is_refused_with_field_and_reason(change: Callable[[Any], object], field: str, reason: str) -> None:
    spec = copy.deepcopy(document())
    change(spec)
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(spec)
    assert caught.value.field == field
    assert reason in caught.value.reason


@pytest.mark.parametrize("spec", [None, [], "text", 7])
def test_what_is_no_mapping_is_no_spec(spec: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^spec: "):
        parse_spec(spec)


def test_a_refusal_of_a_spec_does_not_repeat_what_was_given() -> None:
    """A password that was put in the wrong place must not go on into a status or an event."""
    spec = document()
    spec["databases"][0]["password"] = SENTINEL
    spec["databases"][0]["host"] = {"password": SENTINEL}
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(spec)
    assert SENTINEL not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_database_that_is_not_listed_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="'c'"):
        parse_spec(document()).database("c")


def test_credentials_do_not_show_their_password() -> None:
    assert SENTINEL not in f"{Credentials(username='app', password=SENTINEL)!r}"


def write(path: Path, *documents: object) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def resource(**changes: Any) -> dict[str, Any]:
    return {"kind": "BillingShardSet", "metadata": {"name": "main"}, "spec": document(), **changes}


def secret(**changes: Any) -> dict[str, Any]:
    return {"kind": "Secret", "metadata": {"name": "app"}, "stringData": {"username": "u", "password": SENTINEL}, **changes}


def test_a_manifest_is_the_resource_and_its_secrets_in_any_order(tmp_path: Path) -> None:
    found = Manifest.read(write(tmp_path / "manifest.yaml", secret(), {"kind": "ConfigMap"}, None, resource()))
    assert found.name == "main"
    assert found.spec == parse_spec(document())
    assert found.secrets == {"app": {"username": "u", "password": SENTINEL}}
    assert SENTINEL not in repr(found)


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ([], "holds 0 documents of kind BillingShardSet"),
        ([secret()], "holds 0 documents"),
        ([resource(), resource()], "holds 2 documents"),
        ([["a list"], "a text", 7], "holds 0 documents"),
        ([resource(metadata=None)], "metadata.name: is missing in a document of kind BillingShardSet"),
        ([resource(), secret(metadata={})], "metadata.name: is missing in a document of kind Secret"),
        ([resource(spec=None)], "spec: "),
        ([resource(), secret(stringData=[SENTINEL])], "secret app: stringData is no mapping"),
        ([resource(), secret(stringData={"password": 7_355_608})], "secret app: stringData.password is no text: quote it"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why_and_shows_no_secret(documents: list[Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        Manifest.read(write(tmp_path / "manifest.yaml", *documents))
    assert reason in str(caught.value)
    assert SENTINEL not in str(caught.value)
    assert "7355608" not in str(caught.value)


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\xff", b"!!python/object:os.system {}"])
def test_a_file_that_is_not_yaml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"manifest\.yaml: cannot be read as YAML"):
        Manifest.read(path)


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"gone\.yaml: cannot be read as YAML \(FileNotFoundError\)"):
        Manifest.read(tmp_path / "gone.yaml")


def test_a_pod_reads_its_own_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"CONFIG_DIR": str(tmp_path), "FIRST_SHARD": "16", "LAST_SHARD": "31", "METRICS_PORT": "0"}.items():
        monkeypatch.setenv(f"BILLING_SHARDS_{name}", value)
    found = ProcessSettings()
    assert (found.config_dir, found.first_shard, found.last_shard, found.metrics_port) == (tmp_path, 16, 31, 0)


def test_the_mounted_config_is_name_and_spec(tmp_path: Path) -> None:
    (tmp_path / "shardset.json").write_text(json.dumps({"name": "main", "spec": document()}))
    assert ProcessSettings(config_dir=tmp_path).shard_set() == ("main", parse_spec(document()))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"shardset\.json: cannot be read \(FileNotFoundError\)"),
        (b"{", r"shardset\.json: cannot be read \(JSONDecodeError\)"),
        (b"\xff", r"shardset\.json: cannot be read \(UnicodeDecodeError\)"),
        (b"[]", "is no JSON object with name and spec"),
        (b"{}", "is no JSON object with name and spec"),
        (b'{"name": "main"}', "^spec: "),
        (b'{"name": "main", "spec": {}}', r"^spec\.databases: Field required"),
    ],
)
def test_a_mounted_config_that_cannot_be_used_says_why(content: bytes | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "shardset.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=reason):
        ProcessSettings(config_dir=tmp_path).shard_set()


def test_a_mounted_secret_is_read_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    secrets = FolderSecrets(tmp_path)
    for value in ("old", "new"):
        (tmp_path / "app" / "password").write_text(f"{value}\n")
        assert secrets.value("app", "password") == value


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_mounted_secret_that_cannot_be_read_is_named_by_secret_and_key(content: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    if content is not None:
        (tmp_path / "app" / "password").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"^secret app: key password cannot be read"):
        FolderSecrets(tmp_path).value("app", "password")


def test_credentials_are_those_of_the_role() -> None:
    secrets = ManifestSecrets(
        {"app": {"username": "application", "password": "one"}, "owner": {"username": "owner", "password": "two"}}
    )
    spec = parse_spec(document()).database("a")
    assert credentials(spec, secrets) == Credentials(username="application", password="one")
    assert credentials(spec, secrets, "schema") == Credentials(username="owner", password="two")


def test_a_secret_without_its_keys_is_refused_by_name() -> None:
    spec = parse_spec(document()).database("a")
    for data, reason in (({}, "key username is not in the manifest"), ({"username": "", "password": "x"}, "username is empty")):
        with pytest.raises(InvalidInput, match=f"^secret app: .*{reason}"):
            credentials(spec, ManifestSecrets({"app": data}))
