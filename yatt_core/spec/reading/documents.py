"""Reads and writes YAML as a spec may use it: plain values, string keys, no duplicate keys, no tags.

Consumes text. Produces trees of dictionaries, lists, strings, numbers and booleans. Raises
`ConfigurationError`, which names the line. Numbers follow YAML 1.2: `1e-3` is a number, and a date is a string.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import BaseResolver

from yatt_core.errors import ConfigurationError
from yatt_core.repository_names import is_repository

FILE_KEYS = frozenset({"path", "held_out_path", "file", "environment"})
"""Keys whose value is a file or folder; a `file` ends with the name of a function in it."""
WORKLOAD = "workload"
SETTINGS_FOLDER = (WORKLOAD, "folder")
"""Place of the folder that paths in a workload's settings are relative to; it need not exist."""
POLICY = ("", "model")
"""Place of the policy's model, which can be named by a text."""
HUB = "hub"
FILLED_IN_PATH = "path"
"""The kind of a section that names a repository of the Hub, and its key that YATT fills in."""
FREE_KEYS = frozenset({"options", "settings", "tunable"})
"""Keys whose value is passed on unchanged."""

_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_TRUTH = "tag:yaml.org,2002:bool"
_NOTHING = "tag:yaml.org,2002:null"
_FLOAT = "tag:yaml.org,2002:float"
_WHOLE = "tag:yaml.org,2002:int"
LARGEST_WHOLE = 2**63 - 1
MOST_VALUES = 100_000
"""Maximum number of values in a document; one that an alias repeats counts each time."""
UNBROKEN = 1 << 20
"""Maximum characters of a line of written YAML, large enough that no text is folded."""


class _PlainComposer(Composer):
    """Rejects YAML features that a spec does not support, with their line."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self._sizes: dict[Any, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Rejects explicit tags, which stand for code or for types that JSON lacks, and too many values.

        A few hundred bytes of aliases to aliases can stand for more values than fit into memory.
        """
        event = self.parser.peek_event()
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise ComposerError(None, None, f"tag {tag!r}: tags are not allowed", event.start_mark)
        node = super().compose_node(parent, index)
        if node not in self._sizes:
            value = [] if isinstance(node, ScalarNode) else node.value
            parts = [part for entry in value for part in (entry if isinstance(entry, tuple) else (entry,))]
            self._sizes[node] = size = 1 + sum(self._sizes.get(part, 1) for part in parts)
            if size > MOST_VALUES:
                raise ComposerError(None, None, f"stands for more than {MOST_VALUES:,} values", node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Rejects keys that are not strings and duplicate keys; keys merged in by `<<` may be overridden."""
        mapping = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in mapping.value:
            if key.tag == _MERGE:
                continue
            if key.tag != _TEXT:
                shown = repr(key.value) if isinstance(key, ScalarNode) else "a mapping or list"
                raise ComposerError(
                    None, None, f"key {shown} is not a string; quote it if that is intended", key.start_mark
                )
            if key.value in lines:
                raise ComposerError(
                    None, None, f"key {key.value!r} was already given on line {lines[key.value]}", key.start_mark
                )
            lines[key.value] = key.start_mark.line + 1
        return mapping

    def compose_scalar_node(self, anchor: Any) -> Any:
        """Rejects lone surrogates, which an escape sequence can produce but UTF-8 cannot encode."""
        node = super().compose_scalar_node(anchor)
        if not is_text(node.value):
            raise ComposerError(
                None, None, f"{node.value!r:.80} contains a lone surrogate, which is not valid text", node.start_mark
            )
        return node


class _PlainResolver(BaseResolver):
    """Resolves plain scalars as YAML 1.1 does, except that `1e-3` is a number and a date is text."""

    processing_version = (1, 1)

    def __init__(self, version: Any = None, loader: Any = None) -> None:
        super().__init__(loader)


for _tag, _pattern, _first in (
    (_TRUTH, "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    (_NOTHING, "~|null|Null|NULL|", "~nN"),
    (_MERGE, "<<", "<"),
    (_WHOLE, r"[-+]?(0b[0-1_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)", "-+0123456789"),
    (_FLOAT, r"[-+]?[0-9][0-9_]*\.[0-9_]*([eE][-+][0-9]+)?|\.[0-9][0-9_]*([eE][-+][0-9]+)?", "-+.0123456789"),
    (_FLOAT, r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    (_FLOAT, r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+", "-+.0123456789"),
):
    _PlainResolver.add_implicit_resolver_base(
        _tag, re.compile(f"^(?:{_pattern})$"), [*_first, *[""] * (_tag == _NOTHING)]
    )


class _PlainConstructor(SafeConstructor):
    """Builds plain values; rejects values that contain themselves."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Builds depth first, so that a value that contains itself is detected."""
        if node in self.recursive_objects:
            raise ConstructorError(None, None, "found unconstructable recursive node", node.start_mark)
        return super().construct_object(node, deep=True)

    def construct_yaml_int(self, node: Any) -> int:
        """Rejects integers outside 64 bits, which no database stores and floating point does not represent exactly."""
        value: int = super().construct_yaml_int(node)
        if abs(value) > LARGEST_WHOLE:
            raise ConstructorError(
                None, None, f"{node.value:.40} is too large; integers go up to {LARGEST_WHOLE}", node.start_mark
            )
        return value

    def construct_yaml_float(self, node: Any) -> float:
        """Reads `1e-3` without ruamel's warning that YAML 1.1 requires a decimal point."""
        if "." not in node.value:
            node.value = re.sub("[eE]", ".0e", node.value)
        value: float = super().construct_yaml_float(node)
        return value


_PlainConstructor.add_constructor(_WHOLE, _PlainConstructor.construct_yaml_int)
_PlainConstructor.add_constructor(_FLOAT, _PlainConstructor.construct_yaml_float)


def parse_yaml(text: str, origin: str) -> Any:
    """Returns the value in a YAML text.

    origin: where the text comes from, for error messages.
    """
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _PlainComposer
    reader.Resolver = _PlainResolver
    reader.Constructor = _PlainConstructor
    try:
        return reader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark and "\n" in text.strip() else ""
        raise ConfigurationError(f"{origin}{line}: is not valid YAML: {error.problem}") from None
    except (YAMLError, ValueError) as error:
        raise ConfigurationError(f"{origin}: is not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigurationError(f"{origin}: is not valid YAML: nested too deeply") from None


class _PlainRepresenter(SafeRepresenter):
    """Writes floats with a decimal point, so that YAML 1.1 readers recognise them as numbers."""

    def represent_float(self, data: float) -> Any:
        """Writes `1.0e-06`, not `1e-06`."""
        node = super().represent_float(data)
        if "e" in node.value and "." not in node.value:
            node.value = node.value.replace("e", ".0e")
        return node


_PlainRepresenter.add_representer(float, _PlainRepresenter.represent_float)


def yaml_text(value: Any) -> str:
    """Returns plain values as readable YAML with keys in their order; `parse_yaml` reads the same values back."""
    writer = YAML(typ="safe", pure=True)
    writer.Resolver = _PlainResolver
    writer.Representer = _PlainRepresenter
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = UNBROKEN
    writer.allow_unicode = False
    stream = StringIO()
    writer.dump(value, stream)
    return stream.getvalue()


def read_document(path: Path) -> dict[str, Any]:
    """Returns the mapping in a YAML file, with absolute paths."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 text: byte {error.start} cannot be read") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        found = "empty" if tree is None else described(tree)
        raise ConfigurationError(f"{path}: expected a mapping of keys to values, but this is {found}")
    absolute: dict[str, Any] = with_absolute_paths(tree, path.parent)
    return absolute


def with_folder(tree: Any, folder: Path) -> Any:
    """Returns a spec's tree in which settings of a workload know the folder that their paths are relative to."""
    section = tree.get(WORKLOAD) if isinstance(tree, dict) else None
    key = SETTINGS_FOLDER[-1]
    if not isinstance(section, dict) or not section.get("settings") or key in section:
        return tree
    return {**tree, WORKLOAD: {**section, key: absolute_path(str(folder), Path.cwd())}}


def names_file(keys: Sequence[str]) -> bool:
    """Returns True if the value at a place is the path of a file or folder.

    keys: the place, as the keys that lead to it from the top or from any mapping above it.
    """
    return keys[-1] in FILE_KEYS or tuple(keys[-2:]) == SETTINGS_FOLDER


def with_absolute_paths(node: Any, folder: Path, within: str = "") -> Any:
    """Returns a copy in which paths relative to `folder`, or starting with `~`, are absolute.

    The values of `options` are left unchanged.

    within: the key whose value is the node.
    """
    if isinstance(node, dict):
        kept = (*FREE_KEYS, *((FILLED_IN_PATH,) if node.get("kind") == HUB else ()))
        return {
            key: value if key in kept else _absolute_value((within, key), value, folder) for key, value in node.items()
        }
    if isinstance(node, list):
        return [with_absolute_paths(item, folder, within) for item in node]
    return node


def _absolute_value(keys: tuple[str, str], value: Any, folder: Path) -> Any:
    if keys == POLICY and isinstance(value, str):
        return named_model(value, folder)
    if isinstance(value, str) and names_file(keys):
        return absolute_path(value, folder)
    return with_absolute_paths(value, folder, keys[-1])


def named_model(value: str, folder: Path) -> dict[str, str] | str:
    """Returns the section that the name of a model stands for; the name itself if it can be neither.

    A folder of this machine wins over a repository of the same name.
    """
    try:
        path = absolute_path(value, folder)
    except ConfigurationError:
        return value
    if Path(path).is_dir() or value.startswith("/"):
        return {"kind": "folder", "path": path}
    # Below a folder that exists, a name is a path with a mistake.
    beside = (folder / value.partition("/")[0]).is_dir()
    return {"kind": HUB, "repo": value} if is_repository(value) and not beside else value


def is_text(value: str) -> bool:
    """Returns True if a string can be encoded as UTF-8; lone surrogates cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def absolute_path(value: str, folder: Path) -> str:
    """Returns a user-supplied path as an absolute path with symbolic links resolved."""
    if "\0" in value:
        raise ConfigurationError(f"path {value!r}: a path must not contain a NUL byte")
    home = value == "~" or value.startswith("~/")
    try:
        path = str((folder / (Path(value).expanduser() if home else value)).resolve())
    except (OSError, RuntimeError) as error:  # a loop of symbolic links; no home folder
        raise ConfigurationError(f"path {value!r}: cannot be resolved: {error}") from None
    if not is_text(path):
        raise ConfigurationError(f"path {path!r}: is not UTF-8; rename the file or folder")
    return path


def described(value: Any) -> str:
    """Returns a short form of a value for error messages; of mappings and lists, only the type is given."""
    match value:
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case _:
            return f"{value!r:.80}"
