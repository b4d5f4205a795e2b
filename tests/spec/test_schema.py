"""The JSON Schema and the reference page: complete, documented, and in sync with the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops import spec_reference
from tests.spec.trees import ROOT
from yatt_core.spec import RunSpec, json_schema

SCHEMA = json_schema()
MODELS = {name: model for name, model in {"RunSpec": SCHEMA, **SCHEMA["$defs"]}.items() if "properties" in model}


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_the_schema_is_titled_and_consistent():
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "YATT run spec"
    assert json.loads(json.dumps(SCHEMA, allow_nan=False)) == SCHEMA
    assert {f"#/$defs/{name}" for name in SCHEMA["$defs"]} == set(references(SCHEMA))
    assert set(SCHEMA["properties"]) == {*RunSpec.model_fields, "extends"}
    assert SCHEMA["required"] == ["name"]


@pytest.mark.parametrize("name", MODELS)
def test_no_part_takes_unknown_keys_and_every_required_key_exists(name):
    assert MODELS[name]["additionalProperties"] is False
    assert set(MODELS[name].get("required", [])) <= set(MODELS[name]["properties"])


def test_a_kind_that_distinguishes_parts_is_required():
    members = {name for name, model in MODELS.items() if "const" in model["properties"].get("kind", {})}
    assert {"TorchRollout", "VirtualRollout", "JsonlSource", "GspoLoss"} <= members
    assert {name for name in members if "kind" not in MODELS[name]["required"]} == {"FunctionPart"}
    assert "kind" not in MODELS["ScheduleSpec"].get("required", [])


@pytest.mark.parametrize("name", MODELS)
def test_every_part_and_every_value_is_described(name):
    """A key that holds a part is described by the part; `kind` names a part."""
    assert MODELS[name]["description"].strip()
    undescribed = [
        key
        for key, field in MODELS[name]["properties"].items()
        if not field.get("description") and not list(references(field)) and "const" not in field
    ]
    assert undescribed == []


def test_the_reference_page_is_up_to_date():
    """If it fails, regenerate the page with `python -m ops.spec_reference > docs/spec.md`."""
    assert (ROOT / "docs" / "spec.md").read_text() == spec_reference.render(SCHEMA)


def test_the_reference_page_has_every_key_in_the_part_it_belongs_to():
    sections = dict(part.split("\n", 1) for part in spec_reference.render(SCHEMA).split("\n## ")[1:])
    assert '| `dtype` | `float32` or `bfloat16` | `"float32"` |' in sections["`rollout.engine` of kind `torch`"]
    assert "| `task` | string | required |" in sections["`data.sources[]` of kind `reasoning_gym`"]
    assert "| `phrase_fraction` | number > 0, <= 1 | `0.2` |" in sections["`model.tokenizer`"]
    assert "| `betas` | list of 2: number >= 0, < 1 | `[0.9, 0.95]` |" in sections["`trainer.optimizer`"]
    shown = {
        frozenset(line.split("`")[1] for line in text.splitlines() if line.startswith("| `"))
        for text in sections.values()
    }
    assert shown == {frozenset(model["properties"]) - {"extends"} for model in MODELS.values()}


def test_the_command_writes_the_page(capsys):
    spec_reference.main()
    assert capsys.readouterr().out == Path(ROOT / "docs" / "spec.md").read_text()
