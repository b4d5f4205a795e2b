"""The text of a spec that was written from a peer's file: each value with the peer's key that it comes from.

Consumes a `Translation`. Produces YAML. Writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.starter.peers.entries import KeyVerdict, List
from ops.starter.peers.translating import Translation
from ops.starter.yaml_lines import entry, said, scalar
from yatt_core.spec.reading.documents import FILE_KEYS

INDENT = 2


def spec_text(name: str, folder: Path, translation: Translation, file: str) -> str:
    """Returns the spec with its comments.

    folder: where it is written; paths below the working folder are relative to it.
    file: the peer's file.
    """
    label = translation.program.label
    head = [
        f"# Written by `yatt init --from {file}`, which also lists what has no counterpart and what is different.",
        f"# Behind a value: the key of {label} that it comes from; `default:` where the file leaves it unsaid.",
    ]
    comments = dict(_comments(translation))
    tree = relative({"name": name, **{key: value for key, value in translation.tree.items() if key != "name"}}, folder)
    return "\n".join([*head, *_lines(tree, "", 0, comments)]) + "\n"


def relative(node: Any, folder: Path) -> Any:
    """Returns a copy whose files and folders are relative to a folder."""
    if isinstance(node, dict):
        return {key: _value(key, value, folder) for key, value in node.items()}
    return [relative(item, folder) for item in node] if isinstance(node, list) else node


def _place(path: str, folder: Path) -> str:
    """Returns a path relative to a folder; one outside of the working folder stays as it is."""
    return os.path.relpath(path, folder.resolve()) if Path(path).is_relative_to(Path.cwd()) else path


def _value(key: str, value: Any, folder: Path) -> Any:
    if key not in FILE_KEYS or not isinstance(value, str):
        return relative(value, folder)
    file, colon, function = value.rpartition(":")
    if key == "file" and colon:
        return f"{_place(file, folder)}:{function}"
    return _place(value, folder)


def _comments(translation: Translation) -> Iterator[tuple[str, str]]:
    """Yields, for each of the spec's keys, where it comes from; several keys of the peer are joined."""
    found = dict[str, list[str]]()
    verdicts: list[tuple[str, KeyVerdict]] = [("default: ", verdict) for verdict in translation.defaults]
    verdicts += [("", verdict) for name in (List.TAKEN, List.DIFFERENT) for verdict in translation.lists[name]]
    for prefix, verdict in verdicts:
        for path in verdict.to:
            found.setdefault(path, []).append(f"{prefix}{verdict.key}")
    for path, keys in found.items():
        yield path, ", ".join(keys[:3]) + (" ..." if len(keys) > 3 else "")


def _lines(tree: Mapping[str, Any], above: str, indent: int, comments: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(tree, key=lambda name: name != "kind"):
        value = tree[key]
        path = f"{above}{key}"
        comment = comments.get(path, "")
        if isinstance(value, dict) and value:
            yield from () if indent else ("",)
            yield said(f"{' ' * indent}{key}:", comment)
            yield from _lines(value, f"{path}.", indent + INDENT, comments)
        elif isinstance(value, list) and value and all(_is_plain(one) for one in value):
            yield said(f"{' ' * indent}{key}: [{', '.join(map(scalar, value))}]", comment)
        else:
            yield entry(indent, key, value, comment)


def _is_plain(value: Any) -> bool:
    """Returns whether a value can stand in a list on one line as it is."""
    return isinstance(value, int | float) or (isinstance(value, str) and re.fullmatch(r"\w+", value) is not None)
