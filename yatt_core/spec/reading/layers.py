"""The layers of a spec: files that extend one another, with `--set` on top.

A layer is a tree of plain values and the name of its origin. Merging two layers is a pure function: mappings
merge key by key, everything else is replaced. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import (
    FREE_KEYS,
    POLICY,
    absolute_path,
    named_model,
    names_file,
    parse_yaml,
    with_absolute_paths,
)

CODE_FILE = "file"
FUNCTION = "function"
CODE_DIGEST = "sha256"
"""Keys of a part of the reward, and of a method of the algorithm."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a spec.

    origin: a file's path, or a `--set` option as typed.
    """

    origin: str
    tree: Any


def lay_over(old: Any, new: Any) -> Any:
    """Returns `old` with `new` merged over it; a mapping of another `kind` replaces the old one instead of merging."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    if "kind" in old and "kind" in new and old["kind"] != new["kind"]:
        return new
    return {**old, **{key: lay_over(old[key], value) if key in old else value for key, value in new.items()}}


@dataclass(frozen=True, slots=True)
class Override:
    """`--set a.b.0=value`: sets one key; a number in the key is a list index."""

    text: str
    keys: tuple[str, ...]
    value: Any

    @classmethod
    def parse(cls, text: str) -> Override:
        """Parses the text of a `--set`; the value is YAML, and its paths are relative to the working folder."""
        dotted, equals, written = text.partition("=")
        keys = keys_of(dotted)
        if not equals or not all(keys):
            raise ConfigurationError(
                f"--set {text}: expected key=value, such as --set seed=1 or --set rollout.temperature=0.7"
            )
        value = parse_yaml(written, f"--set {text}")
        if isinstance(value, str) and names_file(keys) and not FREE_KEYS & set(keys):
            value = absolute_path(value, Path.cwd())
        elif isinstance(value, str) and keys == POLICY[1:]:
            value = named_model(value, Path.cwd())
        elif not FREE_KEYS & set(keys):
            value = with_absolute_paths(value, Path.cwd(), keys[-1])
        return cls(text, keys, value)

    def apply(self, tree: Any) -> Any:
        """Returns a copy of the tree with the key set."""
        return self._set(tree, self.keys)

    def layer(self) -> Layer:
        """Returns the override as a layer of its own, so that it can be named as the origin of a mistake."""
        tree = self.value
        for key in reversed(self.keys):
            tree = {key: tree}
        return Layer(f"--set {self.text}", tree)

    def _set(self, node: Any, keys: Sequence[str]) -> Any:
        if not keys:
            return self.value
        key = keys[0]
        below = keys[1:]
        if isinstance(node, list):
            index = self._index(node, key)
            return [*node[:index], self._set(node[index], below), *node[index + 1 :]]
        if node is None:
            node = {}
        if not isinstance(node, dict):
            above = ".".join(self.keys[: -len(keys)])
            raise ConfigurationError(f"--set {self.text}: {above} is a value and cannot have keys")
        if key in (CODE_FILE, FUNCTION):  # the digest belongs to the code named before
            node = {other: value for other, value in node.items() if other != CODE_DIGEST}
        return {**node, key: self._set(node.get(key), below)}

    def _index(self, node: list[Any], key: str) -> int:
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < len(node)):
            raise ConfigurationError(
                f"--set {self.text}: {key!r} is not an index into a list of length {len(node)}; indexes start at 0"
            )
        return int(key)


def keys_of(text: str) -> tuple[str, ...]:
    """Returns the keys that the text of a `--set` names, readable or not."""
    return tuple(text.partition("=")[0].strip().split("."))


def origin_of(layers: Sequence[Layer], place: Sequence[str | int], default: str) -> str:
    """Returns the origin of the last layer that sets this key, or else the closest key above it that is set."""
    for end in range(len(place), 0, -1):
        for layer in reversed(layers):
            if _gives(layer.tree, place[:end]):
                return layer.origin
    return default


def _gives(node: Any, place: Iterable[str | int]) -> bool:
    for part in place:
        if isinstance(node, dict) and str(part) in node:
            node = node[str(part)]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            return False
    return True
