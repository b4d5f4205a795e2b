"""What depends on runs that are to be deleted: forks, sweeps, soups, pipelines, the queue, aliases, specs that name their files.

Consumes the ledger and the ids of runs. Produces a `ConfigurationError` with a line for each obstacle, or the order in which the
runs can be deleted. Runs that depend on each other only can be deleted together. Of a run that is archived, produces the
checkpoints that others still need.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from db.ledger import Ledger
from db.write.pipelines import FINISHED, JobRow
from db.write.records import CheckpointRow
from flows.members.tags import tags_of
from flows.run.home import Home
from flows.soups.record import SOUP, SoupRecord
from flows.sweeps.record import SWEEP
from yatt_core.errors import ConfigurationError

EVERY = 1_000_000
RECORDS = (SWEEP.kind, SOUP.kind)
"""Tags whose value is the run that keeps the record of several runs; also the kinds of the links with which a record begins."""
UNDER_WAY = ("running", "waiting")
"""States of pipelines that may still use what their jobs have made."""


def in_order(home: Home, ledger: Ledger, runs: Sequence[str], promoted: bool = False) -> list[str]:
    """Returns the runs in an order in which each can be deleted: forks before what they began from.

    promoted: whether runs whose checkpoints have aliases may be among them.

    Raises `ConfigurationError` if other runs, or something else that is not to be deleted, depends on them. Raises `RunNotFound`.
    """
    together = set(runs)
    obstacles = [
        line
        for run in runs
        for line in _obstacles(home=home, ledger=ledger, run=run, together=together, promoted=promoted)
    ]
    if obstacles:
        raise ConfigurationError("\n".join(obstacles))
    return sorted(runs, key=lambda run: ledger.runs.find(run).created_at, reverse=True)


def _obstacles(home: Home, ledger: Ledger, run: str, together: Collection[str], promoted: bool) -> Iterator[str]:
    said = f"run {run} cannot be deleted"
    for fork in ledger.overview.forks(run):
        if fork.run not in together:
            yield f"{said}: run {fork.run} is a fork of it; delete both in one command, or keep it"
    for kind in RECORDS:
        record = tags_of(ledger, run).get(kind)
        if record is not None and record not in together and record != run and _exists(ledger, record):
            yield f"{said}: it belongs to the {kind} of run {record}; name all runs of the {kind} in one command"
        if ledger.events.of_kind(run, kind) and (left := _members(ledger, run, kind) - set(together) - {run}):
            those = ", ".join(sorted(left))
            yield f"{said}: it keeps the record of a {kind}, to which {those} belong; name all runs of the {kind} in one command"
    aliases = {} if promoted else ledger.aliases.pointing(run)
    for alias, key in sorted(aliases.items()):
        yield f"{said}: its checkpoint of iteration {key.iteration} has the alias {alias}; --promoted deletes it all the same"
    entry = ledger.queue.entry(run)
    if entry is not None and entry.ended_at is None:
        yield f"{said}: it is in the queue; `yatt queue remove {run}` takes it out"
    for pipeline in ledger.pipelines.newest(EVERY):
        if pipeline.state in UNDER_WAY and any(
            _names(run, job.outputs) for job in ledger.pipelines.jobs(pipeline.id).values()
        ):
            yield f"{said}: pipeline {pipeline.id} is {pipeline.state} and has results of it"
    folder = f"{home.run_folder(run)}/"
    for other in ledger.runs.list(limit=EVERY):
        if other.id not in together and folder in _text_of(ledger, other.id):
            yield f"{said}: the spec of run {other.id} names files in its folder, {folder}"


def checkpoints_of_others(home: Home, ledger: Ledger, run: str, rows: Sequence[CheckpointRow]) -> frozenset[str]:
    """Returns the folders of a run's own checkpoints that others still need.

    These are the ones that a soup merges, that pipelines which have not finished have as results, and that specs of other runs
    name. A sweep needs none: its trials go on from their newest, and its values are in the ledger.
    """
    texts = [
        *(_plain(dict(job.outputs)) for job in _jobs_under_way(ledger)),
        *(_text_of(ledger, other.id) for other in ledger.runs.list(limit=EVERY) if other.id != run),
    ]
    folder = home.run_folder(run)
    merged = _merged_iterations(ledger, run)
    return frozenset(
        row.folder for row in rows if row.iteration in merged or any(f"{folder}/{row.folder}" in text for text in texts)
    )


def _merged_iterations(ledger: Ledger, run: str) -> frozenset[int]:
    """Returns the iterations after which a soup merges a run; none if it belongs to no soup."""
    name = SOUP.record_of(ledger, run)
    if name is None or not _exists(ledger, name):
        return frozenset()
    plan = SoupRecord(ledger, name).plan
    return frozenset({plan.search_at, plan.target})


def _jobs_under_way(ledger: Ledger) -> Iterator[JobRow]:
    """Yields the newest attempts at the jobs of all pipelines that have not finished."""
    for pipeline in ledger.pipelines.newest(EVERY):
        if pipeline.state != FINISHED:
            yield from ledger.pipelines.jobs(pipeline.id).values()


def _members(ledger: Ledger, record: str, kind: str) -> set[str]:
    """Returns the runs that belong to a record, whatever they are forks of."""
    return {row.id for row in ledger.runs.list(limit=EVERY) if tags_of(ledger, row.id).get(kind) == record}


def _text_of(ledger: Ledger, run: str) -> str:
    """Returns a run's spec as a text in which paths stand as they are."""
    return _plain(dict(ledger.runs.revision(run).spec))


def _plain(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, ensure_ascii=False)


def _exists(ledger: Ledger, run: str) -> bool:
    return ledger.deletions.find(run) is None


def _names(run: str, value: Any) -> bool:
    """Returns True if a plain value contains a run's id as a text."""
    if isinstance(value, dict):
        return any(_names(run, each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_names(run, each) for each in value)
    return bool(value == run)
