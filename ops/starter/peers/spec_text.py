"""The text of a spec that was written from a peer's file: each value with the peer's key that it comes from.

Consumes a `Translation`. Produces YAML. Writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.starter.peers.entries import List, Verdict
from ops.starter.peers.translating import Translation
from ops.starter.yaml_lines import entry, said
from yatt_core.spec.reading.documents import FILE_KEYS

INDENT = 2


def spec_text(name: str, folder: Path, translation: Translation, file: str) -> str:
    """Returns the spec with its comments.

    folder: where it is written; its paths are relative to it.
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


def _value(key: str, value: Any, folder: Path) -> Any:
    if key not in FILE_KEYS or not isinstance(value, str):
        return relative(value, folder)
    file, colon, function = value.rpartition(":")
    if key == "file" and colon:
        return f"{os.path.relpath(file, folder.resolve())}:{function}"
    return os.path.relpath(value, folder.resolve())


def _comments(translation: Translation) -> Iterator[tuple[str, str]]:
    """Yields, for each of the spec's keys, where it comes from; several keys of the peer are joined."""
    found = dict[str, list[str]]()
    verdicts: list[tuple[str, Verdict]] = [("default: ", verdict) for verdict in translation.defaults]
    verdicts += [("", verdict) for name in (List.TAKEN, List.DIFFERENT) for verdict in translation.lists[name]]
    for prefix, verdict in verdicts:
        for path in verdict.to:
            found.setdefault(path, []).append(f"{prefix}{verdict.key}")
    for path, keys in found.items():
        yield path, ", ".join(keys[:3]) + (" ..." if len(keys) > 3 else "")


def _lines(tree: Mapping[str, Any], above: str, indent: int, comments: Mapping[str, str]) -> Iterator[str]:
    for key, value in tree.items():
        path = f"{above}{key}"
        comment = comments.get(path, "")
        if isinstance(value, dict) and value:
            yield said(f"{' ' * indent}{key}:", comment)
            yield from _lines(value, f"{path}.", indent + INDENT, comments)
        else:
            yield entry(indent, key, value, comment)
