"""Lists that say what the spec has in the end, after rows were recognised and options have won over the file.

Consumes a translation and the sources as its file has them. Produces a translation. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ops.starter.peers.common import PART_OF_SOURCES
from ops.starter.peers.entries import KeyVerdict, List
from ops.starter.peers.translating import Translation

SOURCES = "data.sources"
NAME = "name"


def as_written(translation: Translation, sources: Sequence[Mapping[str, Any]], named: bool) -> Translation:
    """Returns a translation whose lists have the sources and the name of its tree.

    sources: as the file has them; those of the tree may have other fields, by their rows or by options.
    named: whether an option gives the name.
    """
    replaced = dict(_replaced(sources, translation.tree["data"]["sources"]))
    lists: dict[List, list[KeyVerdict]] = {name: [] for name in List}
    for list_, verdicts in translation.lists.items():
        for verdict in verdicts:
            why = _why(verdict, replaced, named)
            moved = why is not None and list_ is List.TAKEN
            changed = _changed(verdict, translation.tree)
            if why is not None:
                changed = replace(
                    changed, why=f"{verdict.why}; {why}" if SOURCES in changed.to and verdict.why else why
                )
            lists[List.DIFFERENT if moved else list_].append(changed)
    return replace(translation, lists=lists)


def _replaced(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Any, tuple[str, Any]]]:
    """Yields the values of the file's sources that the spec does not have, each with what it has in their place."""
    for old, new in zip(before, after, strict=False):
        for key, value in old.items():
            if key not in ("kind", "path", "repo") and value is not None and new.get(key) != value:
                yield str(value), (key, new.get(key))


def _why(verdict: KeyVerdict, replaced: Mapping[Any, tuple[str, Any]], named: bool) -> str | None:
    """Returns why what a key says is not what the spec has; None if it is."""
    if NAME in verdict.to and named:
        return "--name takes its place"
    if SOURCES in verdict.to and replaced:
        return f"in place of the file's: {', '.join(_said(*found) for found in replaced.values())}"
    if verdict.why == PART_OF_SOURCES and str(verdict.value) in replaced:
        return f"in its place: {_said(*replaced[str(verdict.value)])}"
    return None


def _said(key: str, value: Any) -> str:
    return f"no {key}" if value is None else f"{key} {value!r}"


def _changed(verdict: KeyVerdict, tree: Mapping[str, Any]) -> KeyVerdict:
    """Returns a verdict with the sources and the name that the spec has."""
    final = {SOURCES: tree["data"]["sources"], NAME: tree.get(NAME)}
    return replace(verdict, to={path: final.get(path, value) for path, value in verdict.to.items()})
