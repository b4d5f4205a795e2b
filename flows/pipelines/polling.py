"""Polls a deployed pipeline: records what its triggers see, and names what there is to drive.

    something new, and the last run is finished or failed   -> a new run
    something new, and the last run goes on or waits        -> remembered; one run follows for all of it
    the last run was interrupted, or people have decided    -> the last run goes on

Consumes the deployment and its file, as it is now. Any number of processes may poll at once, and each may be killed at any line:
the ledger decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from db.core.approval_rules import PENDING, standing
from db.ledger import Ledger
from db.write.pipelines import RUNNING, WAITING, PipelineRow
from flows.gates.waiting import is_waiting
from flows.pipelines.conditions import origin_of, schedules_of, see, utc_now
from flows.pipelines.record import new_pipeline
from flows.pipelines.spec import PipelineSpec, load_pipeline, require_triggers
from flows.pipelines.triggers import trigger_key
from yatt_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PollResult:
    """What polling a pipeline has found.

    pipeline: the run of the pipeline that is to be driven; None if there is none.
    said: why, for people.
    """

    pipeline: str | None
    said: str


def deploy_pipeline(ledger: Ledger, file: Path, by: str, now: Callable[[], datetime] = utc_now) -> PipelineSpec:
    """Records that a pipeline is deployed, and what its triggers see; what they have seen before stays.

    Raises `ConfigurationError`.
    """
    spec = load_pipeline(file)
    require_triggers(spec, file)
    schedules_of(spec, file)
    ledger.pipeline_triggers.deploy(spec.name, str(file.parent.resolve() / file.name), by)
    _see_all(ledger, spec, file, now())
    return spec


def poll_pipeline(ledger: Ledger, name: str, now: Callable[[], datetime] = utc_now) -> PollResult:
    """Polls a deployed pipeline. Raises `PipelineNotFound`, and `ConfigurationError` for its file."""
    deployed = ledger.pipeline_triggers.deployment(name)
    file = Path(deployed.file)
    spec = load_pipeline(file)
    if spec.name != name:
        raise ConfigurationError(
            f"{file}: name: the pipeline was deployed as {name!r}; deploy it again under {spec.name!r}"
        )
    schedules_of(spec, file)
    _see_all(ledger, spec, file, now())
    last = ledger.pipelines.last_of(name)
    if last is not None and last.state == RUNNING:
        return PollResult(last.id, f"pipeline {last.id} goes on")
    if last is not None and last.state == WAITING:
        remembered = len(ledger.pipeline_triggers.remembered(name))
        if still_waits(ledger, last):
            after = "; a run follows for what has changed" if remembered else ""
            return PollResult(None, f"pipeline {last.id} {last.reason}{after}")
        return PollResult(last.id, f"pipeline {last.id} goes on, since people have decided")
    begun = ledger.pipeline_triggers.begin(new_pipeline(spec, file.parent, deployed.by))
    if begun is None:
        return PollResult(None, "nothing has changed")
    return PollResult(begun.id, "; ".join(row.why for row in ledger.pipeline_triggers.of(begun.id)))


def still_waits(ledger: Ledger, pipeline: PipelineRow) -> bool:
    """Returns True if nothing that a pipeline waits for has been decided, and none of its runs was resumed by hand."""
    approvals = ledger.approvals
    for job in ledger.pipelines.jobs(pipeline.id).values():
        if job.state != WAITING:
            continue
        if "approval" in job.outputs:
            if standing(approvals.take_default(int(job.outputs["approval"])), approvals.now()) != PENDING:
                return False
        elif "run" in job.outputs and not is_waiting(ledger, str(job.outputs["run"])):
            return False
    return True


def _see_all(ledger: Ledger, spec: PipelineSpec, file: Path, now: datetime) -> None:
    seen = ledger.pipeline_triggers.seen(spec.name)
    for number, trigger in enumerate(spec.triggers):
        key = trigger_key(trigger, file.parent)
        before = [row for row in seen if row.trigger == key]
        found = see(
            ledger=ledger, trigger=trigger, folder=file.parent, before=before, now=now, origin=origin_of(file, number)
        )
        if found is not None:
            ledger.pipeline_triggers.see(spec.name, found)
