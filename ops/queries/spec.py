"""A run's spec as YAML, line by line, with the values that were chosen for this run marked.

Consumes the ledger's revisions; produces `SpecView`. A fork is compared with the run that it was forked from, a later
revision with the one before, and any other spec with the defaults.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from db.ledger import Ledger
from flows.reports.lineage import branch_nodes
from flows.run.dotted_keys import dotted_text
from ops.queries.run_list import find_line
from yatt_core.errors import ConfigurationError
from yatt_core.spec import parse_spec
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.spec.reading.layers import CODE_DIGEST

DEFAULTS = "the defaults"


@dataclass(frozen=True, slots=True)
class SpecLine:
    """A line of the YAML text.

    chosen: True if its value differs from that of `SpecView.against`.
    """

    text: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class SpecView:
    """A run's spec.

    against: what the spec is compared with.
    changes: number of dotted keys that differ.
    """

    run: str
    revision: int
    digest: str
    against: str
    changes: int
    lines: tuple[SpecLine, ...]


def spec_view(ledger: Ledger, run: str) -> SpecView:
    """Returns the newest revision of a run's spec. Raises `RunNotFound`."""
    find_line(ledger, run)
    newest = ledger.runs.revision(run)
    document = dict(newest.spec)
    against, chosen = _chosen(ledger, run, newest.revision, document)
    text, places = _written(json.dumps(document))
    marked = {line for key, lines in places.items() if key in chosen for line in lines}
    lines = tuple(SpecLine(line, number in marked) for number, line in enumerate(text.rstrip().split("\n")))
    return SpecView(
        run=run, revision=newest.revision, digest=newest.digest, against=against, changes=len(chosen), lines=lines
    )


def spec_for_new_run(ledger: Ledger, run: str) -> str:
    """Returns the newest revision of a run's spec as YAML, without the digests of reward files.

    A new run uses the present contents of the files. Raises `RunNotFound`.
    """
    document = copy.deepcopy(dict(ledger.runs.revision(run).spec))
    for part in document["rewards"]["parts"]:
        part.pop(CODE_DIGEST, None)
    return yaml_text(document)


def _chosen(ledger: Ledger, run: str, revision: int, document: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Returns what a spec is compared with, and the dotted keys whose values differ."""
    parent = next((node.parent_run for node in branch_nodes(ledger, run) if node.number == 0), None)
    if revision > 1:
        return f"revision {revision - 1}", _differing(document, ledger.runs.revision(run, revision - 1).spec)
    if parent is not None:
        return f"run {parent}", _differing(document, ledger.runs.revision(parent).spec)
    try:
        spec = parse_spec(dict(document), f"the spec of run {run}")
    except ConfigurationError:  # written by another version; nothing can be said about its defaults
        return DEFAULTS, set()
    return DEFAULTS, set(dotted_text(spec.model_dump(mode="json", exclude_defaults=True)))


def _differing(after: Mapping[str, Any], before: Mapping[str, Any]) -> set[str]:
    old = dotted_text(before)
    return {key for key, value in dotted_text(after).items() if old.get(key) != value}


@lru_cache(maxsize=64)
def _written(document: str) -> tuple[str, Mapping[str, range]]:
    """Returns a spec, given as JSON, as YAML, and the lines on which each dotted key's value is written, from 0."""
    text = yaml_text(json.loads(document))
    return text, dict(_leaves(YAML(typ="safe", pure=True).compose(text), "", 0))


def _leaves(node: Node, prefix: str, first: int) -> Iterator[tuple[str, range]]:
    """Yields each leaf's dotted key and its lines; a list of plain values is a leaf.

    first: the line of the leaf's own key.
    """
    if isinstance(node, MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaves(value, f"{prefix}{key.value}.", key.start_mark.line)
    elif isinstance(node, SequenceNode) and node.value and isinstance(node.value[0], MappingNode):
        for number, value in enumerate(node.value):
            yield from _leaves(value, f"{prefix}{number}.", value.start_mark.line)
    else:
        # The end of a block list is the beginning of the next line with contents.
        last = max(first, node.end_mark.line - (1 if node.end_mark.column == 0 else 0))
        if isinstance(node, SequenceNode) and not node.flow_style and node.value:
            last = max(child.end_mark.line for child in node.value)
        yield prefix[:-1], range(first, last + 1)


def lag_of(ledger: Ledger, run: str) -> int:
    """Returns how many iterations a run collects ahead; 0 if its version of YATT knew no lag."""
    lag: int = ledger.runs.revision(run).spec.get("asynchrony", {}).get("lag", 0)
    return lag
