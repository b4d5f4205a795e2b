"""Reads peers' texts as `yatt init --from` does, without a model, data or a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.starter.peers.entries import ConfigEntry, List, PeerFile
from ops.starter.peers.files import read_peer_file
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.programs import PROGRAMS
from ops.starter.peers.translating import Translation, translate

EXAMPLES = Path(__file__).parent / "examples"
MODEL = {"kind": "folder", "path": "/models/small"}
SOURCE = {"kind": "jsonl", "path": "/data/rows.jsonl"}
ROWS = 7_473


def options(**changes: Any) -> TranslationOptions:
    """Returns options with a number of rows, and of processes for what does not say it."""
    return TranslationOptions(
        **{"folder": Path("/nowhere"), "processes": None, "count_rows": lambda sources: ROWS, **changes}
    )


def of_file(path: Path, processes: int | None = None, **changes: Any) -> Translation:
    program, said = read_peer_file(path)
    known = options(folder=path.parent, processes=processes if said.processes is None else None, **changes)
    return translate(program, said, path.name, known)


def of_keys(program: str, keys: Mapping[str, Any], **changes: Any) -> Translation:
    """Translates keys beside a model, data and rewards that the options name."""
    given = {"model": MODEL, "sources": (SOURCE,), "rewarded": True, "processes": 1, **changes}
    entries = tuple(ConfigEntry(key, value, number) for number, (key, value) in enumerate(keys.items(), start=1))
    return translate(PROGRAMS[program], PeerFile(program, entries), "file", options(**given))


def at(translation: Translation, path: str) -> Any:
    """Returns a value of the spec; None if it is not written."""
    node: Any = translation.tree
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def keys_in(translation: Translation, name: List) -> set[str]:
    return {verdict.key for verdict in translation.lists[name]}


def summary(translation: Translation) -> dict[str, dict[str, Any]]:
    """Returns, by list, each key with what was written for it."""
    lists: dict[str, dict[str, Any]] = {
        name.value: {verdict.key: dict(verdict.to) for verdict in verdicts}
        for name, verdicts in translation.lists.items()
    }
    return {**lists, "defaults": {verdict.key: dict(verdict.to) for verdict in translation.defaults}}
