"""JSON Schema of the spec, for editors and documentation."""

from __future__ import annotations

from typing import Any

from yatt_core.naming import MARK
from yatt_core.spec.combinations import described_exclusions
from yatt_core.spec.presets import PRESET, PRESETS
from yatt_core.spec.rewards.scheme import FunctionPart
from yatt_core.spec.run import RunSpec

COMBINATIONS = "x-combinations"
"""The key of the pairs of features that exclude each other."""


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a spec file.

    It includes `extends`, which is resolved before validation, and under `x-combinations` what does not go together.
    """
    schema = RunSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "YATT run spec"
    schema[COMBINATIONS] = described_exclusions()
    schema["properties"]["extends"] = {
        "description": "Spec files to start from, relative to this file; later ones win.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    section = schema["properties"]["model"]
    schema["properties"]["model"] = {
        "default": section.pop("default"),
        MARK: "repository",
        "anyOf": [{"type": "string", "description": "A folder, or the name of a repository on the Hub."}, section],
    }
    schema["$defs"]["AlgorithmSpec"]["properties"][PRESET] = {
        "description": "Published settings that the other keys change; `yatt schema --preset NAME` prints them in full.",
        "enum": [*PRESETS],
        "default": None,
    }
    for name, model in schema["$defs"].items():
        # `kind` selects the member of a union, so it is required, except for the kind that is the default.
        if "const" in model.get("properties", {}).get("kind", {}) and name != FunctionPart.__name__:
            model["required"] = ["kind", *model.get("required", [])]
    return schema
