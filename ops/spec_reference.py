"""`python -m ops.spec_reference > docs/spec.md`: the reference of a spec's keys, written from the models.

Consumes the JSON Schema of the spec. Produces Markdown: one table for each part, with key, type, default and meaning.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from yatt_core.spec import json_schema

HEAD = """\
# The spec of a run

A spec is a YAML file; `yatt schema` prints its JSON Schema for editors. Keys without a default are required. A key that
is none of these is an error, and so is a key given twice. This page is written by `python -m ops.spec_reference`.

- `extends: base.yaml`, or a list of files, starts from other specs, given relative to the file. Later ones win, and the
  file itself wins over all. Mappings merge key by key; lists and values replace. A mapping with another `kind` replaces
  the one below it; without a `kind` it adds to it.
- `--set KEY=VALUE` sets one key on top: `--set seed=1`, `--set data.sources.0.weight=2`,
  `--set 'rollout.engine={kind: torch, instances: 1}'`. A number in KEY is an index into a list, from 0. VALUE is YAML:
  put text with a colon in quotes once more, as in `--set 'data.system_prompt="Answer: "'`.
- Files and folders are relative to the file that names them; behind `--set`, to the working folder. `~` is your home.
  `options` are handed on as they are.
- Where a part has several kinds, `kind` says which one it is.
- A spec is immutable. Its digest, over all values with defaults filled in, identifies it.
"""
NAMES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
BOUNDS = {"exclusiveMinimum": "over", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}

Schema = Mapping[str, Any]


def main() -> None:
    """Writes the page to standard output."""
    sys.stdout.write(render(json_schema()))


def render(schema: Schema) -> str:
    """The page."""
    # A part that several kinds of the part above have in common is shown once.
    parts = dict.fromkeys(_part("", schema, schema["$defs"], "Top level"))
    return "\n".join([HEAD, *parts])


def _part(place: str, part: Schema, definitions: Schema, title: str) -> Iterator[str]:
    """A part's heading, meaning and table, and then the parts below it."""
    fields = {key: field for key, field in part["properties"].items() if key != "extends"}
    required = part.get("required", [])
    first = sorted(fields, key=lambda key: key not in required)
    rows = [_row(key, fields[key], key in required, definitions) for key in first]
    table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])
    yield f"## {title}\n\n{_one_line(part.get('description', ''))}\n\n{table}\n"
    for key, field in fields.items():
        below = f"{place}{key}{'[]' if field.get('type') == 'array' else ''}"
        for model in _models(field, definitions):
            suffix = f" of kind `{kind}`" if (kind := _kind(model)) else ""
            yield from _part(f"{below}.", model, definitions, f"`{below}`{suffix}")


def _row(key: str, field: Schema, required: bool, definitions: Schema) -> str:
    models = _models(field, definitions)
    meaning = field.get("description") or " / ".join(model["description"] for model in models)
    if key == "kind" and "const" in field:
        meaning = "Says that it is this kind."
    cells = (f"`{key}`", _type(field, definitions), "required" if required else _default(field), meaning)
    return f"| {' | '.join(_one_line(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _models(field: Schema, definitions: Schema) -> list[Schema]:
    """The parts that may stand in a field, or in its items."""
    found = []
    if "$ref" in field and "properties" in (model := _resolve(field, definitions)):
        found.append(model)
    for choice in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        found += _models(choice, definitions)
    return found or (_models(field["items"], definitions) if "items" in field else [])


def _kind(model: Schema) -> str | None:
    """What tells a member of a union from the others."""
    kind: str | None = model["properties"].get("kind", {}).get("const")
    return kind


def _resolve(reference: Schema, definitions: Schema) -> Schema:
    model: Schema = definitions[reference["$ref"].rpartition("/")[2]]
    return model


def _type(field: Schema, definitions: Schema) -> str:
    """A field's type in words."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "anyOf" in field:
        return " or ".join(_type(choice, definitions) for choice in field["anyOf"])
    if models := _models(field, definitions):
        kinds = [f"`{kind}`" for model in models if (kind := _kind(model))]
        part = f"part of kind {' or '.join(kinds)}" if kinds else "part"
        return f"list of: {part}" if "items" in field else part
    match field.get("type"):
        case "array" if "prefixItems" in field:
            return f"list of {len(field['prefixItems'])}: {_type(field['prefixItems'][0], definitions)}"
        case "array":
            return f"list of: {_type(field['items'], definitions)}"
        case "object":
            return "mapping of any values"
        case name:
            return " ".join([NAMES[str(name)], *_bounds(field)])


def _bounds(field: Schema) -> Iterator[str]:
    if limits := [f"{words} {field[key]:g}" for key, words in BOUNDS.items() if key in field]:
        yield ", ".join(limits)
    if "pattern" in field:
        yield f"like `{field['pattern']}`"


def _default(field: Schema) -> str:
    if "default" not in field:
        return "empty" if field.get("type") == "object" else "see below"
    default = field["default"]
    if isinstance(default, dict):
        return f"`{default['kind']}`" if "discriminator" in field else "see below"
    return f"`{json.dumps(default)}`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
