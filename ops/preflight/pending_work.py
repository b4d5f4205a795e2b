"""What this version could not go on with, or does otherwise, besides single runs: work that is under way, and work that recurs.

    sweeps, soups      those that have not ended: their specs, and those of their runs
    queue              the pools file, and entries whose driver could not begin
    deployments        runs from whose specs windows have made new runs: what is refused, or made with a warning
    pipelines          those that have not finished: their specs, and those of the jobs that are left; the files of deployed ones
    suites             the specs of suites that runs were evaluated on, or are to be

Consumes a migrated ledger and the home's files; no server is asked, so that a deployment is known only once a window of it has
begun. Produces `PendingChange`s. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from db.ledger import Ledger
from db.write.pipelines import DONE, FINISHED, SKIPPED, PipelineRow
from flows.pipelines.checks import spec_of_job
from flows.pipelines.spec import EvaluateJob, PipelineSpec, SpecJob, load_pipeline, parse_pipeline
from flows.queueing.pools_file import pools_file, read_pools
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.schedule.window_record import makers_of_new_runs
from flows.soups.record import SOUP, SoupRecord
from flows.sweeps.record import SWEEP, WINNER, SweepRecord
from ops.preflight.new_runs import refused_since
from ops.preflight.pending_change import PendingChange
from yatt_core.errors import YattError
from yatt_core.evaluation.suites import load_suite, parse_suite
from yatt_core.spec.availability import unavailable

EVERY = 1_000_000
COMPLETED = "completed"


def changes_of_work(home: Home, ledger: Ledger) -> Iterator[PendingChange]:
    """Yields what would change, in the order of the table above."""
    yield from _sweeps(ledger)
    yield from _soups(ledger)
    yield from _queue(home, ledger)
    yield from _deployments(ledger)
    yield from _pipelines(ledger)
    yield from _suites(ledger)


def _sweeps(ledger: Ledger) -> Iterator[PendingChange]:
    for run in ledger.events.runs_with(SWEEP.kind):
        if not ledger.events.of_kind(run, WINNER):
            said = _mistake(partial(_next_step, SweepRecord(ledger, run)))
            if said:
                yield PendingChange(
                    what="sweep", run=run, before="", after="", effect=f"it cannot go on: {said}", blocks=True
                )


def _soups(ledger: Ledger) -> Iterator[PendingChange]:
    for run in ledger.events.runs_with(SOUP.kind):
        said = _mistake(partial(_next_step, SoupRecord(ledger, run)))
        if said:
            yield PendingChange(
                what="soup", run=run, before="", after="", effect=f"it cannot go on, or be merged: {said}", blocks=True
            )


def _next_step(record: SweepRecord | SoupRecord) -> object:
    """Returns what its next command would do, for which all of it is read."""
    if isinstance(record, SweepRecord):
        return record.plan.next_step(record.facts())
    return record.plan.next_step(record.facts())


def _queue(home: Home, ledger: Ledger) -> Iterator[PendingChange]:
    entries = ledger.queue.rows().open
    if pools_file(home).exists():
        said = _mistake(partial(read_pools, home))
        if said:
            yield PendingChange(
                what="queue", run=None, before="", after="", effect=f"nothing is started: {said}", blocks=bool(entries)
            )
    for entry in entries:
        said = _mistake(partial(current_spec, ledger, entry.run))
        if said:
            yield PendingChange(
                what="queue", run=entry.run, before="", after="", effect=f"its driver cannot begin: {said}", blocks=True
            )


def _deployments(ledger: Ledger) -> Iterator[PendingChange]:
    """Yields what this version refuses of deployments; none blocks, since the ledger does not know whether they still exist."""
    for run in makers_of_new_runs(ledger):
        try:
            spec = current_spec(ledger, run)
        except YattError as error:
            yield PendingChange(
                what="deployment",
                run=run,
                before="",
                after="",
                effect=f"a window can make no new run any more: {error}",
            )
            continue
        for line in unavailable(spec):
            yield PendingChange(
                what="deployment", run=run, before="", after="", effect=f"a window can make no new run here: {line}"
            )
        for refused in refused_since(spec):
            effect = f"a window makes new runs as before, with a warning; people's own are refused: {refused}"
            yield PendingChange(what="deployment", run=run, before="", after="", effect=effect)


def _pipelines(ledger: Ledger) -> Iterator[PendingChange]:
    for row in ledger.pipelines.newest(EVERY):
        if row.state != FINISHED:
            yield from _of_pipeline(ledger, row)
    for deployed in ledger.pipeline_triggers.deployments():
        what = f"deployed pipeline {deployed.name}"
        file = Path(deployed.file)
        try:
            spec = load_pipeline(file)
        except YattError as error:
            yield PendingChange(what=what, run=None, before="", after="", effect=f"it cannot begin: {error}")
            continue
        for effect, _ in _of_jobs(spec, file.parent, frozenset()):
            yield PendingChange(what=what, run=None, before="", after="", effect=effect)


def _of_pipeline(ledger: Ledger, row: PipelineRow) -> Iterator[PendingChange]:
    what = f"pipeline {row.id}"
    try:
        spec = parse_pipeline(dict(row.spec), f"the spec of {what}")
    except YattError as error:
        yield PendingChange(what=what, run=None, before="", after="", effect=f"it cannot go on: {error}", blocks=True)
        return
    done = frozenset(name for name, job in ledger.pipelines.jobs(row.id).items() if job.state in (DONE, SKIPPED))
    for effect, blocks in _of_jobs(spec, Path(row.folder), done):
        yield PendingChange(what=what, run=None, before="", after="", effect=effect, blocks=blocks)


def _of_jobs(spec: PipelineSpec, folder: Path, done: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yields what is to be said of the jobs that are left, and whether it keeps the job from being done."""
    for name, job in spec.jobs.items():
        if name in done:
            continue
        if isinstance(job, SpecJob):
            try:
                made = spec_of_job(job, folder)
            except YattError as error:
                yield f"job {name} cannot be done: {error}", True
                continue
            yield from ((f"job {name} cannot be done here: {line}", True) for line in unavailable(made))
            yield from (
                (f"job {name} makes a run that people cannot make: {line}", False) for line in refused_since(made)
            )
        elif isinstance(job, EvaluateJob) and job.suite is not None:
            said = _mistake(partial(load_suite, folder / job.suite))
            if said:
                yield f"job {name} cannot be done: {said}", True


def _suites(ledger: Ledger) -> Iterator[PendingChange]:
    """Yields what this version refuses of suites; none blocks, since what was measured stays and is shown."""
    for run, tree in ledger.suites.specs():
        name = str(tree.get("name", ""))
        said = _mistake(partial(parse_suite, dict(tree), f"the recorded suite {name}"))
        if said:
            yield PendingChange(
                what=f"suite {name}",
                run=run,
                before="",
                after="",
                effect=f"the run cannot be evaluated on it again: {said}",
            )
    for row in ledger.runs.list(EVERY):
        for file in _suites_of(ledger, row.id) if row.state != COMPLETED else ():
            said = _mistake(partial(load_suite, file))
            if said:
                yield PendingChange(
                    what=f"suite {file.name}",
                    run=row.id,
                    before="",
                    after="",
                    effect=f"its checkpoints are not evaluated on it: {said}",
                )


def _suites_of(ledger: Ledger, run: str) -> list[Path]:
    """Returns the suites' files that a run's spec names; none if the spec cannot be read, which is said elsewhere."""
    try:
        return [Path(each.path) for each in current_spec(ledger, run).evaluation.suites]
    except YattError:
        return []


def _mistake(read: Callable[[], object]) -> str:
    """Returns why something cannot be read; empty if it can."""
    try:
        read()
    except YattError as error:
        return str(error)
    return ""
