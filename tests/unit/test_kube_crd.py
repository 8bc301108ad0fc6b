"""The custom resource definition and the model of the spec say the same: names, required, defaults, bounds, choices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from billing_shards.settings import API_GROUP, API_VERSION, KIND, ShardSetSpec

ROOT = Path(__file__).parents[2]
BOUNDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "minLength": "minLength",
    "minItems": "minItems",
    "maxItems": "maxItems",
    "pattern": "pattern",
    "enum": "enum",
    "type": "type",
}


def definition() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "crds" / "billingshardsets.yaml").read_text())
    return found


def crd_schema() -> dict[str, Any]:
    (version,) = definition()["spec"]["versions"]
    assert version["name"] == API_VERSION
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A JSON-schema node of pydantic without $ref, and without the null of an optional field."""
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]] | {k: v for k, v in node.items() if k != "$ref"}
    if "anyOf" in node:
        (only,) = [option for option in node["anyOf"] if option.get("type") != "null"]
        node = resolved(only, definitions) | {k: v for k, v in node.items() if k not in ("anyOf", "default")}
    return node


def pairs(
    path: str, crd: dict[str, Any], model: dict[str, Any], definitions: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    model = resolved(model, definitions)
    yield path, crd, model
    if crd["type"] == "object":
        assert set(crd["properties"]) == set(model["properties"]), path
        for name, child in crd["properties"].items():
            yield from pairs(f"{path}.{name}", child, model["properties"][name], definitions)
    if crd["type"] == "array":
        yield from pairs(f"{path}[]", crd["items"], model["items"], definitions)


def spec_pairs() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    model = ShardSetSpec.model_json_schema(by_alias=True)
    return list(pairs("spec", crd_schema()["properties"]["spec"], model, model["$defs"]))


def test_the_walk_meets_every_field() -> None:
    paths = [path for path, _, _ in spec_pairs()]
    assert "spec.databases[].tls.caSecret.name" in paths
    assert "spec.retry.checkDelaysSeconds[]" in paths
    assert len(paths) > 50


def test_fields_required_and_bounds_are_those_of_the_model() -> None:
    for path, crd, model in spec_pairs():
        assert set(crd.get("required", [])) == set(model.get("required", [])), path
        for bound in BOUNDS:
            wanted = model.get("const") and [model["const"]] if bound == "enum" and "const" in model else model.get(bound)
            if bound == "minimum" and "exclusiveMinimum" in model:
                assert crd["exclusiveMinimum"] is True, path
                wanted = model["exclusiveMinimum"]
            if bound == "maximum" and "exclusiveMaximum" in model:
                assert model["type"] == "integer", path
                wanted = model["exclusiveMaximum"] - 1
            assert crd.get(bound) == wanted, (path, bound)


def test_lengths_are_bounded_by_the_model_or_by_its_pattern() -> None:
    for path, crd, model in spec_pairs():
        if crd["type"] == "string" and "enum" not in crd:
            assert "maxLength" in crd, path
            assert crd["maxLength"] == model.get("maxLength", crd["maxLength"] if "pattern" in model else None), path


def test_defaults_fill_in_what_the_model_would() -> None:
    for path, crd, model in spec_pairs():
        if crd["type"] == "object" and "default" in crd:
            assert crd["default"] == {}, path  # filled in field by field
        elif "default" in crd or model.get("default") is not None:
            assert crd["default"] == model["default"], path
    minimal = {
        "databases": [{"name": "a", "host": "h", "credentialsSecret": {"name": "s"}, "schemaSecret": {"name": "t"}}],
        "gateway": {"url": "http://x"},
    }
    filled = ShardSetSpec.model_validate(minimal).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert pruned_and_defaulted(minimal, crd_schema()["properties"]["spec"]) == filled


def pruned_and_defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server makes of a value."""
    if schema["type"] == "array":
        return [pruned_and_defaulted(item, schema["items"]) for item in value]
    if schema["type"] != "object":
        return value
    filled = {}
    for name, child in schema["properties"].items():
        if name in value or "default" in child:
            filled[name] = pruned_and_defaulted(value.get(name, child.get("default")), child)
    return filled


def every_node(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from every_node(child, f"{path}.{name}")
    if "items" in node:
        yield from every_node(node["items"], f"{path}[]")


def test_every_field_is_explained_and_every_list_bounded() -> None:
    for part in ("spec", "status"):
        for path, node in every_node(crd_schema()["properties"][part], part):
            if not (path.endswith("[]") and node["type"] != "object"):
                assert len(node.get("description", "")) > 5, path
            if node["type"] == "array":
                assert "maxItems" in node, path
                assert "x-kubernetes-list-type" in node, path
            assert "x-kubernetes-preserve-unknown-fields" not in node, path
            if node["type"] == "object":
                assert node["properties"], path


def test_names_are_those_the_code_uses() -> None:
    names = definition()["spec"]["names"]
    assert definition()["spec"]["group"] == API_GROUP
    assert names["kind"] == KIND
    assert definition()["metadata"]["name"] == f"{names['plural']}.{API_GROUP}"
    assert "bss" in names["shortNames"]
    assert names["categories"] == ["all", "billing"]


def test_the_chart_installs_this_very_file() -> None:
    installed = ROOT / "helm" / "billing-shards" / "files" / "crds" / "billingshardsets.yaml"
    assert installed.resolve() == ROOT / "crds" / "billingshardsets.yaml"
