"""JSON Schema of the spec, for editors and documentation."""

from __future__ import annotations

from typing import Any

from yatt_core.spec.rewards.scheme import PLAIN_PART
from yatt_core.spec.run import RunSpec


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a spec file; `extends` is resolved before the spec is checked."""
    schema = RunSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "YATT run spec"
    schema["properties"]["extends"] = {
        "description": "Spec files that this one starts from, relative to it; later ones win.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    for model in schema["$defs"].values():
        # The members of a union are told apart by `kind`, which therefore has to be written, but for the part that goes without.
        if model.get("properties", {}).get("kind", {}).get("const", PLAIN_PART) != PLAIN_PART:
            model["required"] = ["kind", *model.get("required", [])]
    return schema
