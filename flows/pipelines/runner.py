"""Carries a pipeline from where it stands to its end, or to where people have to decide.

Consumes a pipeline of the ledger and the tools that do its jobs. Produces attempts at jobs in the ledger. It may be killed at any
line: the next one asks the plan again, and an attempt that was lost is made again from what it left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from db.core.engine import Fence
from db.core.errors import RunNotFound
from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from db.write.pipelines import DONE, FAILED, FINISHED, SKIPPED, WAITING, JobRow
from flows.members.driving import Drives, reached
from flows.pipelines.inputs import Outputs, inputs_of, run_spec
from flows.pipelines.jobs import JobContext, WaitsForApproval, begun_run, finish_train, run_job
from flows.pipelines.plan import Fail, Finish, PipelineFacts, Start, Wait, next_step
from flows.pipelines.spec import CHECKPOINT, MODEL, TrainJob, parse_pipeline
from flows.pipelines.tools import Tools
from flows.run.home import Home
from flows.run.lease import LIFE_SECONDS, LeaseKeeper, renewed
from yatt_core.digests import json_digest
from yatt_core.errors import DrivenElsewhereError, FencedError, InfrastructureError, YattError
from yatt_core.spec import RunSpec

Task = Callable[[], None]
RunStep = Callable[[str, Task], None]
"""Does a step under a name, such as a Prefect task."""


def run_directly(name: str, task: Task) -> None:
    """Does a step as it is."""
    task()


class PipelineRunner:
    """Drives one pipeline.

    run_step: does each step.
    """

    def __init__(
        self, home: Home, ledger: Ledger, pipeline: str, tools: Tools, run_step: RunStep = run_directly
    ) -> None:
        self._home = home
        self._ledger = ledger
        self._tools = tools
        self._run_step = run_step
        row = ledger.pipelines.find(pipeline)
        self._name = row.id
        self._folder = Path(row.folder)
        self._spec = parse_pipeline(dict(row.spec), f"the spec of pipeline {row.id}")
        self._waiting: dict[str, str] = {}
        self._failed: dict[str, str] = {}

    def run(self) -> str:
        """Takes all steps that can be taken now; returns the state that the pipeline is in: finished, waiting or failed.

        Raises `LeaseHeld` if another process drives it, and `FencedError` if one has taken over meanwhile.
        """
        if self._ledger.pipelines.find(self._name).state == FINISHED:  # its end stays what it is
            return FINISHED
        with self._driving() as lease:
            fence = lease.fence
            while True:
                lease.check()
                done = self._done()
                facts = PipelineFacts(frozenset(done), frozenset(self._waiting), frozenset(self._failed))
                match next_step(self._spec, facts):
                    case Start(jobs):
                        self._run_step(", ".join(jobs), partial(self._do, fence, jobs, done))
                    case Wait(jobs):
                        said = "; ".join(f"{name} {self._waiting[name]}" for name in jobs)
                        return self._end(lease, WAITING, said)
                    case Fail(jobs):
                        return self._end(lease, FAILED, "; ".join(f"{name}: {self._failed[name]}" for name in jobs))
                    case Finish():
                        return self._end(lease, FINISHED, "")

    def _done(self) -> dict[str, JobRow]:
        rows = self._ledger.pipelines.jobs(self._name)
        return {name: row for name, row in rows.items() if row.state in (DONE, SKIPPED)}

    def _end(self, lease: LeaseKeeper, state: str, reason: str) -> str:
        lease.stop()
        self._ledger.pipelines.release(lease.fence, state, reason)
        self._tools.tell(f"{self._name}: {state}")
        return state

    def _do(self, fence: Fence, jobs: Sequence[str], done: Mapping[str, JobRow]) -> None:
        """Does jobs that are ready: runs together, another one alone."""
        begun: list[tuple[JobContext, JobRow, RunSpec]] = []
        for name in jobs:
            with self._failing(name):
                context, attempt = self._begin(
                    fence, name, {each: done[each].outputs for each in self._spec.needs(name)}
                )
                if attempt is None:
                    continue
                with self._failing(name, fence, attempt, context):
                    job = self._spec.jobs[name]
                    if isinstance(job, TrainJob):
                        spec = run_spec(self._folder, job, context.needed_outputs)
                        self._tools.require_devices(spec)
                        begun_run(context, spec)
                        begun.append((context, attempt, spec))
                    else:
                        self._tools.tell(f"{self._name}: {name} ({job.kind})")
                        self._ledger.pipelines.end(fence, attempt, DONE, run_job(context))
        said = self._drive({str(context.outputs["run"]): spec for context, _, spec in begun}) if begun else ""
        for context, attempt, spec in begun:
            with self._failing(context.name, fence, attempt, context):
                self._ledger.pipelines.end(fence, attempt, DONE, finish_train(context, spec.iterations, said))

    def _drive(self, specs: Mapping[str, RunSpec]) -> str:
        """Drives runs to their ends; returns what is said of those that ended too early, a line for each.

        specs: by run.
        """
        drive: Drives = self._tools.drives()
        self._tools.tell(f"{self._name}: driving {', '.join(specs)}")

        def goals() -> dict[str, int]:
            return {run: spec.iterations for run, spec in specs.items() if reached(self._ledger, run) < spec.iterations}

        try:
            drive(goals)
        except InfrastructureError as error:
            return str(error)
        return ""

    def _begin(
        self, fence: Fence, name: str, needed_outputs: Mapping[str, Outputs]
    ) -> tuple[JobContext, JobRow | None]:
        """Begins an attempt at a job; None if it was done before on the same inputs."""
        pipelines = self._ledger.pipelines
        inputs = inputs_of(self._spec, self._folder, name, needed_outputs)
        key = json_digest(inputs)
        earlier = [row for row in pipelines.same(key) if self._is_still_there(row.outputs)]
        known = next((row for row in earlier if row.state in (DONE, SKIPPED) and self._suffices(name, row)), None)
        left = next((row.outputs for row in earlier if row.pipeline == self._name and row.job == name), {})
        attempt = pipelines.begin(fence=fence, job=name, key=key, inputs=inputs, outputs=left)
        context = JobContext(
            home=self._home,
            ledger=self._ledger,
            tools=self._tools,
            pipeline=self._name,
            spec=self._spec,
            folder=self._folder,
            name=name,
            needed_outputs=needed_outputs,
            outputs=dict(left),
            note=lambda outputs: pipelines.note(fence, attempt, outputs),
        )
        if known is None:
            return context, attempt
        pipelines.end(
            fence=fence,
            attempt=attempt,
            state=SKIPPED,
            outputs=known.outputs,
            reason=f"done by {known.pipeline} on the same inputs",
        )
        return context, None

    def _suffices(self, name: str, row: JobRow) -> bool:
        """Returns True if a job that was done has produced all that others want now."""
        return MODEL in row.outputs or not self._spec.wants(name, MODEL)

    def _is_still_there(self, outputs: Outputs) -> bool:
        """Returns False if the run, the checkpoint or the model that a job produced was removed."""
        if MODEL in outputs and not Path(str(outputs[MODEL])).is_dir():
            return False
        if "run" not in outputs:
            return True
        run = str(outputs["run"])
        try:
            self._ledger.runs.find(run)
        except RunNotFound:
            return False
        kept = self._ledger.records.own_checkpoints(run, "kept")  # a kept one may lie in the durable tier only
        folders = {str(self._home.run_folder(run) / row.folder) for row in kept}
        return CHECKPOINT not in outputs or outputs[CHECKPOINT] in folders

    @contextmanager
    def _failing(
        self,
        name: str,
        fence: Fence | None = None,
        attempt: JobRow | None = None,
        context: JobContext | None = None,
    ) -> Iterator[None]:
        """Records that a job waits or has failed, if it does, so that others go on."""
        try:
            yield
        except WaitsForApproval as error:
            self._waiting[name] = str(error)
            state = WAITING
            said = str(error)
        except (DrivenElsewhereError, FencedError):
            raise  # says who drives the job's runs, and nothing of the job
        except (YattError, RunNotFound) as error:
            self._failed[name] = str(error)
            state = FAILED
            said = str(error)
        else:
            return
        # Why it has failed is said once, at the end.
        self._tools.tell(f"{self._name}: {name} {said if state == WAITING else 'has failed'}")
        if fence is not None and attempt is not None and context is not None:
            self._ledger.pipelines.end(fence=fence, attempt=attempt, state=state, outputs=context.outputs, reason=said)

    @contextmanager
    def _driving(self) -> Iterator[LeaseKeeper]:
        """Holds the lease of the pipeline, and renews it. After an error it ends with the process, or by itself."""
        holder = this_process(f"yatt pipeline of {self._name}")
        fence = self._ledger.leases.take(of_pipeline(self._name), holder, LIFE_SECONDS)
        with renewed(self._ledger, fence) as lease:
            yield lease
