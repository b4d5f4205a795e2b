"""Reads a spec: YAML with `extends:`, dotted overrides, and errors that name file, key and remedy.

Consumes a YAML file (and those it extends, later ones and the file itself winning) and `a.b=c` overrides. Produces a
`RunSpec` whose paths are absolute. Raises `ConfigurationError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.spec.run import RunSpec

PATH_KEYS = frozenset({"path", "held_out_path"})


def load_spec(path: Path, overrides: Sequence[str] = ()) -> RunSpec:
    """The spec in a YAML file, after its overrides."""
    tree = _read_tree(path, ())
    for override in overrides:
        _apply_override(tree, override)
    return parse_spec(tree, str(path))


def parse_spec(tree: Any, origin: str) -> RunSpec:
    """The spec in a tree of plain values; origin names it in errors."""
    try:
        return RunSpec.model_validate(tree)
    except ValidationError as error:
        lines = [f"{origin}: {line}" for line in _explain(error)]
        raise ConfigurationError("\n".join(lines)) from None


def _read_tree(path: Path, visited: tuple[Path, ...]) -> dict[str, Any]:
    resolved = path.resolve()
    if resolved in visited:
        raise ConfigurationError(f"{path}: extends itself through {' -> '.join(str(p.name) for p in visited)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigurationError(f"{path}: a spec is a mapping of keys, this is {type(tree).__name__}")
    _make_paths_absolute(tree, path.parent.resolve())
    bases = tree.pop("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        _merge(merged, _read_tree(path.parent / base, (*visited, resolved)))
    _merge(merged, tree)
    return merged


def _merge(target: dict[str, Any], update: dict[str, Any]) -> None:
    """Lays update over target; a mapping of another `kind` replaces instead of mixing with it."""
    for key, value in update.items():
        old = target.get(key)
        same_kind = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind")
        )
        if isinstance(old, dict) and isinstance(value, dict) and same_kind:
            _merge(old, value)
        else:
            target[key] = value


def _make_paths_absolute(node: Any, folder: Path) -> None:
    """Paths in a spec are relative to the file that names them."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in PATH_KEYS and isinstance(value, str):
                node[key] = str((folder / value).resolve())
            else:
                _make_paths_absolute(value, folder)
    elif isinstance(node, list):
        for item in node:
            _make_paths_absolute(item, folder)


def _apply_override(tree: dict[str, Any], override: str) -> None:
    """Sets one dotted key; a number in it is an index into a list."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted.strip():
        raise ConfigurationError(
            f"--set {override}: write key=value, such as --set seed=1 or --set rollout.temperature=0.7"
        )
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    node: Any = tree
    *parents, last = dotted.strip().split(".")
    for part in parents:
        node = _child(node, part, override)
    if last in PATH_KEYS and isinstance(value, str):
        value = str(Path(value).resolve())
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, override)]
    if node.get(part) is None:
        node[part] = {}
    if not isinstance(node[part], dict | list):
        raise ConfigurationError(f"--set {override}: {part!r} is a value, it has no keys below it")
    return node[part]


def _index(node: list[Any], part: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigurationError(f"--set {override}: {part!r} is no index into a list of {len(node)}")
    return int(part)


def _explain(error: ValidationError) -> Iterator[str]:
    """One line per mistake: the key, what is wrong, and the nearest valid key for an unknown one."""
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        place = ".".join(location) or "spec"
        if item["type"] == "extra_forbidden":
            known = sorted(_known_keys(location[:-1]))
            near = difflib.get_close_matches(location[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            yield f"{place}: unknown key; {hint}"
        elif item["type"] == "missing":
            yield f"{place}: required key is missing"
        else:
            given = f" (given: {item['input']!r:.80})" if isinstance(item["input"], str | int | float | bool) else ""
            yield f"{place}: {item['msg'].removeprefix('Value error, ')}{given}"


def _known_keys(location: Sequence[str]) -> set[str]:
    """Keys of the part of the spec at a location, whichever kind of backend it is."""
    models: set[type[BaseModel]] = {RunSpec}
    for part in location:
        kinds = {m for m in models if "kind" in m.model_fields and m.model_fields["kind"].default == part}
        if kinds:
            models = kinds
        elif not part.isdigit():
            models = {
                m
                for model in models
                if part in model.model_fields
                for m in _models_in(model.model_fields[part].annotation)
            }
    return {name for model in models for name in model.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
