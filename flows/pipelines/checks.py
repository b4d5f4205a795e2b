"""What can be known to be wrong with a pipeline before it begins: its jobs' specs and changes, figures of gates, schedules.

Consumes a pipeline's file; reads the specs and suites that it names. Produces the pipeline. Raises `ConfigurationError` with a
line per mistake, each with the file and the place in it. Made-up paths stand for what earlier jobs are yet to produce.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from flows.driver.windows import check_cron, check_timezone, parse_duration
from flows.pipelines.references import misspelled, referenced, resolved
from flows.pipelines.spec import (
    CHECKPOINT,
    MODEL,
    RUN,
    EvaluateJob,
    ExportJob,
    GateJob,
    Job,
    MergeJob,
    PipelineSpec,
    SoupJob,
    SpecJob,
    load_pipeline,
)
from flows.pipelines.triggers import ScheduleTrigger
from flows.soups.spec import load_soup
from yatt_core.errors import ConfigurationError
from yatt_core.evaluation.panel import JUDGE, PANEL, PanelSpec
from yatt_core.evaluation.suites import load_suite
from yatt_core.evaluation.summary import ACCURACY, MAJORITY
from yatt_core.problems import Problems
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.sections.evaluation import EvaluationSampling

SHORTEST_INTERVAL = timedelta(minutes=1)


def checked_pipeline(file: Path) -> PipelineSpec:
    """Returns the pipeline in a file, once all that it names has been checked."""
    spec = load_pipeline(file)
    problems = Problems()
    checks = _Checks(spec, file)
    for number, trigger in enumerate(spec.triggers):
        if isinstance(trigger, ScheduleTrigger):
            with problems.noting():
                check_schedule(trigger, f"{file}: triggers.{number}")
    for name, job in spec.jobs.items():
        if isinstance(job, SpecJob):
            with problems.noting():
                checks.read_spec(name, job)
        elif isinstance(job, EvaluateJob) and job.suite is not None:
            with problems.noting():
                checks.read_suite(name, job.suite)
    for name, job in spec.jobs.items():
        with problems.noting():
            checks.check_own(name, job)
        if isinstance(job, GateJob):
            with problems.noting():
                checks.check_gate(name, job)
    problems.raise_as_configuration()
    return spec


def spec_of_job(job: SpecJob, folder: Path) -> RunSpec:
    """Returns the spec of the runs that a job makes, with made-up ids and paths for what earlier jobs are yet to produce.

    folder: what the job's path is relative to.

    Raises `ConfigurationError` with a line per mistake.
    """
    path = folder / job.spec
    texts = _without_references(job)
    is_soup = isinstance(job, SoupJob)
    if "jobs" in read_document(path):
        kind = "soup" if is_soup else "run"
        raise ConfigurationError(f"{path} is a pipeline's file; expected the spec of a {kind}")
    return load_soup(path, texts)[1] if is_soup else load_spec(path, texts)


def check_schedule(trigger: ScheduleTrigger, origin: str) -> None:
    """Raises `ConfigurationError` for a cron line, an interval or a time zone that is none.

    origin: the trigger's name in error messages.
    """
    if trigger.cron is not None:
        check_cron(trigger.cron, f"{origin}.cron")
    elif parse_duration(trigger.interval or "", f"{origin}.interval") < SHORTEST_INTERVAL:
        raise ConfigurationError(f"{origin}.interval: {trigger.interval} is too short; expected at least 1m")
    check_timezone(trigger.timezone, f"{origin}.timezone")


def figure_names(sampling: EvaluationSampling | None, judges: PanelSpec | None = None) -> list[str]:
    """Returns the names of the figures of an evaluation that a gate can require."""
    names = [ACCURACY, "low", "high", "reward", "tasks", "unscored"]
    if sampling is not None:
        names += [f"pass_at_{k}" for k in sorted(sampling.pass_at)] + [MAJORITY] * (sampling.vote is not None)
    if judges is not None:
        names += [PANEL, *(f"{JUDGE}{part.name}" for part in judges.parts)]
    return names


@dataclass
class _Checks:
    """The checks of one pipeline's jobs.

    runs: the specs of jobs' runs, by job, as far as they could be read.
    figures: the names of figures on suites, by job, as far as they could be read.
    """

    spec: PipelineSpec
    file: Path
    runs: dict[str, RunSpec] = field(default_factory=dict)
    figures: dict[str, list[str]] = field(default_factory=dict)

    def read_spec(self, name: str, job: SpecJob) -> None:
        """Reads the spec of a job with its changes."""
        place = f"{self.file}: jobs.{name}"
        if wrong := list(_misspelled(job.set, self.spec.jobs, place)):
            raise ConfigurationError("\n".join(wrong))
        texts = _without_references(job)
        try:
            self.runs[name] = spec_of_job(job, self.file.parent)
        except ConfigurationError as error:
            lines = [_placed(line, place, job.set, texts) for line in str(error).splitlines()]
            raise ConfigurationError("\n".join(lines)) from None

    def read_suite(self, name: str, suite: str) -> None:
        """Reads the suite of a job."""
        try:
            spec = load_suite(self.file.parent / suite)
        except ConfigurationError as error:
            lines = [f"{self.file}: jobs.{name}.suite: {line}" for line in str(error).splitlines()]
            raise ConfigurationError("\n".join(lines)) from None
        self.figures[name] = figure_names(spec.sampling, spec.judges)

    def check_own(self, name: str, job: Job) -> None:
        """Raises `ConfigurationError` for a job that takes what a workload of one's own does not have: a model, or answers."""
        place = f"{self.file}: jobs.{name}"
        wrong = []
        if isinstance(job, SpecJob):
            for number, text in enumerate(job.set):
                for other in [other for other, product in referenced(text) if product == MODEL]:
                    if title := self._own_workload(other):
                        wrong.append(
                            f"{place}.set.{number}: {other!r} exports no model, since it trains the workload {title}; expected "
                            f"workload.start.path=${{jobs.{other}.{CHECKPOINT}}}"
                        )
        elif isinstance(job, ExportJob) and (title := self._own_workload(job.of)):
            wrong.append(
                f"{place}.of: {job.of!r} exports no model, since it trains the workload {title}; leave the job out"
            )
        elif isinstance(job, EvaluateJob) and job.suite is not None and (title := self._own_workload(job.of)):
            wrong.append(
                f"{place}.suite: {job.of!r} answers no tasks, since it trains the workload {title}; leave suite out: it "
                "evaluates itself"
            )
        if wrong:
            raise ConfigurationError("\n".join(wrong))

    def check_gate(self, name: str, job: GateJob) -> None:
        """Raises `ConfigurationError` for figures that the gate's evaluation does not have."""
        known = self._figures_of(job.of)
        wrong = [
            f"{self.file}: jobs.{name}.at_least.{figure}: unknown figure; {_nearest(figure, known)}"
            for figure in job.at_least
            if known and figure not in known
        ]
        if wrong:
            raise ConfigurationError("\n".join(wrong))

    def _figures_of(self, evaluation: str) -> list[str]:
        """Returns the names of an evaluation's figures; empty if they are not known before it."""
        job = self.spec.jobs[evaluation]
        if not isinstance(job, EvaluateJob) or job.suite is not None:
            return self.figures.get(evaluation, [])
        run = self._run_of(job.of)
        if run is None or run.has.own_metrics:
            return []  # those of a workload of one's own have names of its own
        return figure_names(run.evaluation.sampling)

    def _run_of(self, name: str) -> RunSpec | None:
        """Returns the spec of the runs of a job; None if it could not be read, or has none."""
        source = self.spec.jobs[name]
        return self.runs.get(source.of if isinstance(source, MergeJob) else name)

    def _own_workload(self, name: str) -> str:
        """Returns the workload of one's own that a job trains; empty if there is none."""
        run = self._run_of(name)
        return "" if run is None or run.has.language_model else run.workload.title


def _misspelled(texts: Sequence[str], jobs: Mapping[str, object], place: str) -> Iterator[str]:
    for number, text in enumerate(texts):
        for found, meant in misspelled(text, jobs):
            expected = f"did you mean `{meant}`?" if meant else "expected `${jobs.NAME.PRODUCT}`"
            yield f"{place}.set.{number}: {found} is no reference to a job; {expected}"


def _without_references(job: SpecJob) -> list[str]:
    return [resolved(text, _made_up(text)) for text in job.set]


def _made_up(text: str) -> dict[str, dict[str, str]]:
    """Returns an id or a path for each product that a text refers to, by job and product."""
    found: dict[str, dict[str, str]] = {}
    for job, product in referenced(text):
        found.setdefault(job, {})[product] = f"{job}-1" if product == RUN else f"/jobs/{job}/{product}"
    return found


def _placed(line: str, place: str, given: Sequence[str], texts: Sequence[str]) -> str:
    """Returns an error of a job's spec with its place in the pipeline's file.

    given: the job's changes.
    texts: the same changes without references, as the error names them.
    """
    for number, text in enumerate(texts):
        for separator in (": ", ", "):
            if line.startswith(start := f"--set {text}{separator}"):
                return f"{place}.set.{number}: {given[number]}{separator}{line.removeprefix(start)}"
    return f"{place}.spec: {line}"


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known figures: {', '.join(known)}"
