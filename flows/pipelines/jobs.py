"""How a job of each kind is done. Each may be killed at any line and done again: it finds what the attempt before left behind.

Consumes a job, the outputs of the jobs that it takes something from, and the tools. Produces the job's outputs, among them the
digest that stands for them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db.core.approval_rules import APPROVED, PENDING, Approval, standing
from db.ledger import Ledger
from flows.gates.asking import question_of
from flows.gates.promotions import settle
from flows.gates.waiting import awaited
from flows.members.driving import ended_early, reached
from flows.members.record import begin_record
from flows.members.tags import Family, tags_of
from flows.pipelines.inputs import DIGEST, Outputs, overrides_of
from flows.pipelines.spec import (
    CHECKPOINT,
    MODEL,
    EvaluateJob,
    ExportJob,
    GateJob,
    Job,
    MergeJob,
    PipelineSpec,
    PromoteJob,
    SoupJob,
)
from flows.pipelines.tools import Tools
from flows.prefect_io.secret_blocks import read_block
from flows.run.creation import create_run, finish_run
from flows.run.home import Home
from flows.soups.merged_runs import merge_run
from flows.soups.parents import merge_of
from flows.soups.record import MERGED, SOUP
from flows.soups.runner import SoupRunner
from flows.soups.spec import load_soup
from yatt_core.digests import file_sha256, json_digest
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.gates.due import DueGate
from yatt_core.spec import RunSpec, override_spec

PIPELINE = Family("pipeline", "pipeline_job")
"""The tags of runs that jobs have created."""


class WaitsForApproval(YattError):
    """A job goes on once people have decided an approval."""


class JobFailed(YattError):
    """A job has failed; its text says why."""


@dataclass
class JobContext:
    """A job that is being done.

    folder: what paths in the pipeline's file are relative to.
    needed_outputs: outputs of the jobs that it needs.
    outputs: its own so far; `note` records them.
    """

    home: Home
    ledger: Ledger
    tools: Tools
    pipeline: str
    spec: PipelineSpec
    folder: Path
    name: str
    needed_outputs: Mapping[str, Outputs]
    outputs: dict[str, Any]
    note: Callable[[Mapping[str, Any]], None] = field(default=lambda outputs: None)

    def record(self, **outputs: Any) -> None:
        """Records some of the outputs."""
        self.outputs |= outputs
        self.note(self.outputs)

    def source(self) -> Outputs:
        """Returns the outputs of the job whose result this one takes."""
        job: Any = self.spec.jobs[self.name]
        return self.needed_outputs[job.of]


def begun_run(context: JobContext, spec: RunSpec) -> str:
    """Returns the run of a job, which is created, or its creation finished, if need be."""
    if "run" not in context.outputs:
        context.record(
            run=_found_run(context, spec)
            or create_run(context.home, _tagged(context, spec), by=context.tools.by, read_block=read_block)
        )
    run = str(context.outputs["run"])
    if context.ledger.runs.find(run).state == "created":
        finish_run(context.home, run, _tagged(context, spec))
    return run


def finish_train(context: JobContext, until: int, said: str) -> dict[str, Any]:
    """Returns the outputs of a run that was driven. Raises `WaitsForApproval`, `JobFailed`.

    said: what is said of runs that ended too early, a line for each, such as where the output of its driver is.
    """
    run = str(context.outputs["run"])
    if reached(context.ledger, run) < until:
        approval = awaited(context.ledger, run)
        if approval is not None and approval.decision is None:
            raise WaitsForApproval(f"run {run} waits for approval {approval.id}")
        early = ended_early(context.ledger, run, until)
        raise JobFailed(next((line for line in said.splitlines() if line.startswith(early)), early))
    return _checkpoint_outputs(context, run)


def run_job(context: JobContext) -> dict[str, Any]:
    """Does a job that is no run; returns its outputs. Raises `WaitsForApproval`, `JobFailed`, and what its work raises."""
    job: Job = context.spec.jobs[context.name]
    match job:
        case SoupJob():
            return _soup(context, job)
        case MergeJob():
            return _merge(context, job)
        case EvaluateJob():
            return _evaluate(context, job)
        case GateJob():
            return _gate(context, job)
        case ExportJob():
            return _export(context, job)
        case PromoteJob():
            return _promote(context, job)
    raise AssertionError(f"runs are driven together, not one at a time: {context.name}")


def _tagged(context: JobContext, spec: RunSpec) -> RunSpec:
    tags = PIPELINE.tags(context.pipeline, context.name)
    return override_spec(spec, tags, f"the spec of job {context.name} of pipeline {context.pipeline}")


def _found_run(context: JobContext, spec: RunSpec) -> str | None:
    """Returns the run that a killed attempt has created without recording it."""
    digest = _tagged(context, spec).digest
    for row in context.ledger.runs.named(spec.name):
        tags = tags_of(context.ledger, row.id)
        is_own = PIPELINE.member_of(context.pipeline, tags) == context.name
        if is_own and context.ledger.runs.revision(row.id, 1).digest == digest:
            return row.id
    return None


def _checkpoint_outputs(context: JobContext, run: str) -> dict[str, Any]:
    rows = context.ledger.records.checkpoints(run)
    if not rows:
        raise JobFailed(f"run {run} has ended without a checkpoint; see `checkpoints` in its spec")
    newest = rows[0]
    outputs = {
        "run": run,
        "iteration": newest.iteration,
        CHECKPOINT: str(context.home.run_folder(newest.run) / newest.folder),
        "weights_digest": newest.weights_digest,
        # Equal weights of another run are another result: what follows reads the run's spec, or gives that run an alias.
        DIGEST: json_digest([run, newest.iteration, newest.weights_digest]),
    }
    if context.spec.wants(context.name, MODEL):
        outputs[MODEL] = _exported(context, run, newest.iteration, None)
    return outputs


def _exported(context: JobContext, run: str, iteration: int, dtype: str | None) -> str:
    to = context.home.pipelines / context.pipeline / context.name / f"{run}-i{iteration:06d}"
    if not to.exists():  # it is written at once or not at all
        to.parent.mkdir(parents=True, exist_ok=True)
        context.tools.export(run, iteration, to, dtype)
    return str(to)


def _soup(context: JobContext, job: SoupJob) -> dict[str, Any]:
    soup, spec = load_soup(context.folder / job.spec, overrides_of(job, context.needed_outputs))
    run = begun_run(context, spec)
    begin_record(context.ledger, SOUP, run, soup)
    tools = context.tools
    SoupRunner(
        home=context.home,
        ledger=context.ledger,
        soup=run,
        drive=tools.drives(),
        open_meter=tools.open_meter,
        tell=tools.tell,
    ).run()
    return {"run": run, DIGEST: context.ledger.events.head(run).hash}


def _merge(context: JobContext, job: MergeJob) -> dict[str, Any]:
    soup = str(context.source()["run"])
    preference = list(job.preference)
    for link in context.ledger.events.of_kind(soup, MERGED):
        merged = merge_of(context.ledger, str(link.body["run"]))
        if merged and (merged["preference"], merged["alpha"]) == (preference, job.extrapolation):
            return _checkpoint_outputs(context, str(link.body["run"]))
    return _checkpoint_outputs(context, merge_run(context.home, soup, job.preference, job.extrapolation).run)


def _evaluate(context: JobContext, job: EvaluateJob) -> dict[str, Any]:
    source = context.source()
    run = str(source["run"])
    iteration = int(source["iteration"])
    suite = None if job.suite is None else context.folder / job.suite
    figures = dict(context.tools.evaluate(run, iteration, suite))
    measured = {"weights": source[DIGEST], "figures": figures}
    return {"run": run, "iteration": iteration, "figures": figures, DIGEST: json_digest(measured)}


def _gate(context: JobContext, job: GateJob) -> dict[str, Any]:
    source = context.source()
    figures: Mapping[str, Any] = source["figures"]
    for name, lowest in job.at_least.items():
        value = _number(figures.get(name))
        if value is None:
            numbers = ", ".join(key for key, each in figures.items() if _number(each) is not None)
            raise JobFailed(f"at_least: there is no figure {name!r}; the evaluation has {numbers}")
        if value < lowest:
            raise JobFailed(f"{name} is {value:.4g}; at least {lowest:g} is expected")
    outputs = {"run": source["run"], "figures": dict(figures)}
    if job.approval is not None:
        approval = _asked(context, job, source)
        outputs |= {"approval": approval.id, "decided_by": approval.decided_by, "reason": approval.reason}
    return {**outputs, DIGEST: json_digest({"passed": source[DIGEST]})}


def _number(figure: Any) -> float | None:
    """Returns a figure's value, also of an estimate with an interval; None if it has none."""
    value = figure.get("value") if isinstance(figure, Mapping) else figure
    return float(value) if isinstance(value, int | float) else None


def _asked(context: JobContext, job: GateJob, source: Outputs) -> Approval:
    """Returns the approval of a gate. Raises `WaitsForApproval` while it is open, `JobFailed` once it is rejected."""
    gate = job.approval
    assert gate is not None, "the caller has a gate"
    run = str(source["run"])
    iteration = int(source["iteration"])
    named = f"pipeline {context.pipeline}"
    gate_named = "its gate" if context.name == "gate" else f"its gate {context.name}"
    text = f"go on with {named} after {gate_named}, with iteration {iteration} of run {run}?"
    due = DueGate("pipeline", f"{context.name}-{source[DIGEST]}", text, gate)
    question = question_of(due, named, run, {"iteration": iteration, "figures": dict(source["figures"])})
    approvals = context.ledger.approvals
    approval = approvals.take_default(approvals.ask(question).id)
    context.record(approval=approval.id)
    _require_approved(approval, approvals.now())
    return approval


def _require_approved(approval: Approval, now: int) -> None:
    said = standing(approval, now)
    if said == PENDING:
        raise WaitsForApproval(f"waits for approval {approval.id}")
    if said != APPROVED:
        raise JobFailed(f"approval {approval.id} was {said} by {approval.decided_by}: {approval.reason}")


def _export(context: JobContext, job: ExportJob) -> dict[str, Any]:
    source = context.source()
    folder = Path(_exported(context, str(source["run"]), int(source["iteration"]), job.dtype))
    files = {str(path.relative_to(folder)): file_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    return {MODEL: str(folder), DIGEST: json_digest(files)}


def _promote(context: JobContext, job: PromoteJob) -> dict[str, Any]:
    source = context.source()
    ledger = context.ledger
    run = str(source["run"])
    iteration = int(source["iteration"])
    why = f"pipeline {context.pipeline}, job {context.name}"
    if "approval" not in context.outputs:
        number = context.tools.promote(run, iteration, job.to, why)
        if number is not None:
            context.record(approval=number)
    if "approval" in context.outputs:
        approval = ledger.approvals.take_default(int(context.outputs["approval"]))
        _require_approved(approval, ledger.approvals.now())
        settle(ledger, run)
    pointing = ledger.aliases.pointing(run).get(job.to)
    if pointing is None or pointing.iteration != iteration:
        raise InfrastructureError(f"run {run}: {job.to} is not iteration {iteration}, although it was promoted")
    return {"run": run, "iteration": iteration, "alias": job.to, DIGEST: json_digest([run, iteration, job.to])}
