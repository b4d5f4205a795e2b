"""YAML as a spec may use it: plain values, text as keys, no key twice, no tags.

Consumes text; produces trees of dictionaries, lists, text, numbers and booleans. Raises `ConfigurationError` that names the
line. Numbers as in YAML 1.2 (`1e-3` is one, a date is text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from yatt_core.errors import ConfigurationError

FILE_KEYS = frozenset({"path", "held_out_path"})
"""Keys whose value is a file or folder."""
FREE_KEYS = frozenset({"options"})
"""Keys whose value is handed on as it is."""

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_DATE = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"
_WHOLE = "tag:yaml.org,2002:int"
LARGEST_WHOLE = 2**63 - 1


class _PlainLoader(yaml.SafeLoader):
    """A loader that refuses what a spec has no use for, with the line it stands in."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuses explicit tags, whose meaning would be code or a type that JSON lacks."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise yaml.composer.ComposerError(None, None, f"tag {tag!r}: a spec holds plain values", event.start_mark)
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Refuses keys that are no text or stand there twice; what `<<` merges in may be overridden."""
        mapping = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in mapping.value:
            if key.tag == _MERGE:
                continue
            if key.tag != _TEXT:
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a mapping or list"
                raise yaml.composer.ComposerError(
                    None, None, f"key {shown} is not text; if it is meant, put it in quotes", key.start_mark
                )
            if key.value in lines:
                raise yaml.composer.ComposerError(
                    None, None, f"key {key.value!r} was already given in line {lines[key.value]}", key.start_mark
                )
            lines[key.value] = key.start_mark.line + 1
        return mapping

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        """Refuses half a surrogate pair, which an escape can write and no text can hold."""
        node = super().compose_scalar_node(anchor)
        if not is_text(node.value):
            raise yaml.composer.ComposerError(
                None, None, f"{node.value!r:.80} holds half a surrogate pair, which is no text", node.start_mark
            )
        return node

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Refuses a whole number that no database takes, and that cannot be reckoned with in floating point."""
        value = super().construct_yaml_int(node)
        if abs(value) > LARGEST_WHOLE:
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value:.40} is too large; whole numbers go up to {LARGEST_WHOLE}", node.start_mark
            )
        return value

    def construct_document(self, node: yaml.Node) -> Any:
        """Builds depth first, which refuses a value that contains itself."""
        return self.construct_object(node, deep=True)


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_PlainLoader.add_constructor(_WHOLE, _PlainLoader.construct_whole)
_PlainLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def parse_yaml(text: str, origin: str) -> Any:
    """The value in a YAML text; origin names it in errors."""
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark and "\n" in text.strip() else ""
        raise ConfigurationError(f"{origin}{line}: is not YAML for a spec: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{origin}: is not YAML for a spec: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigurationError(f"{origin}: is not YAML for a spec: nested too deeply") from None


def read_document(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, its paths absolute."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text: byte {error.start} cannot be read") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        found = "empty" if tree is None else described(tree)
        raise ConfigurationError(f"{path}: a spec is a mapping of keys to values, this is {found}")
    absolute: dict[str, Any] = with_absolute_paths(tree, path.parent)
    return absolute


def names_file(keys: Sequence[str]) -> bool:
    """Whether the value at such a place, from the top or from any mapping above it, is a file or folder."""
    return keys[-1] in FILE_KEYS


def with_absolute_paths(node: Any, folder: Path, within: str = "") -> Any:
    """A copy whose files and folders, given relative to a folder or to `~`, are absolute; options are left alone.

    within: the key that the node is the value of.
    """
    if isinstance(node, dict):
        return {key: _absolute_value((within, key), value, folder) for key, value in node.items()}
    if isinstance(node, list):
        return [with_absolute_paths(item, folder, within) for item in node]
    return node


def _absolute_value(keys: tuple[str, str], value: Any, folder: Path) -> Any:
    if keys[-1] in FREE_KEYS:
        return value
    if isinstance(value, str) and names_file(keys):
        return absolute_path(value, folder)
    return with_absolute_paths(value, folder, keys[-1])


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8: half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def absolute_path(value: str, folder: Path) -> str:
    """A path that a person wrote, absolute and without links."""
    if "\0" in value:
        raise ConfigurationError(f"path {value!r}: a path has no zero byte")
    home = value == "~" or value.startswith("~/")
    try:
        path = str((folder / (Path(value).expanduser() if home else value)).resolve())
    except (OSError, RuntimeError) as error:  # links in a circle; no home
        raise ConfigurationError(f"path {value!r}: cannot be followed: {error}") from None
    if not is_text(path):
        raise ConfigurationError(f"path {path!r}: is not UTF-8; rename the file or folder")
    return path


def described(value: Any) -> str:
    """A value in an error message: briefly, and mappings and lists by what they are."""
    match value:
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case None:
            return "nothing"
        case _:
            return f"{value!r:.80}"
