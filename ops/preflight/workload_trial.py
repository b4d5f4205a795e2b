"""Tries out a workload of one's own: builds its inputs in a scratch folder, begins, samples, evaluates and learns once.

Consumes the home folder and the spec. Produces what was found; raises `ConfigurationError`, `DataError` and `NumericError`.
Leaves nothing behind.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from yatt_core.spec import RunSpec
from yatt_core.spec.sections.metric_names import is_occasional, is_timing

TRIED = "tried"
"""Stands for the run's id."""


@dataclass(frozen=True, slots=True)
class WorkloadTrial:
    """What a workload has done on one rank.

    files, input_bytes: number and size of its inputs' files.
    columns: types and shapes of the first iteration's columns, by name.
    figures: the metrics of an evaluation of the state with which it begins.
    learnt: the metrics of the first update.
    state_bytes: size of its state.
    sampler_bytes: what a sampler gets of weights after each update; 0 without samplers.
    image_bytes: size of the files of the first iteration's images; 0 if it shows none.
    seconds: how long all of it took.
    forecast_seconds: how long the run takes on one rank, if each iteration and evaluation takes as long as the first.
    """

    files: int
    input_bytes: int
    columns: Mapping[str, str]
    figures: Mapping[str, float]
    learnt: Mapping[str, float]
    state_bytes: int
    sampler_bytes: int
    image_bytes: int
    seconds: float
    forecast_seconds: float

    def unseen_metrics(self, spec: RunSpec) -> tuple[str, ...]:
        """Returns a warning for each guard on a metric that the trial has not seen and that the engine does not add.

        A class may have metrics that come later, so that this is no error.
        """
        seen = {*self.figures, *self.learnt}
        return tuple(
            f"guards.custom.{number}.metric: {guard.metric!r} is none of the metrics of this trial, without which the guard has "
            f"no effect: {', '.join(sorted(seen)) or 'there are none'}"
            for number, guard in enumerate(spec.guards.custom)
            if guard.metric not in seen and not is_timing(guard.metric) and not is_occasional(guard.metric)
        )


def evaluations_of(spec: RunSpec) -> int:
    """Returns how often a run evaluates: at the start, every `evaluation.every` iterations, and at the end."""
    every = spec.evaluation.every
    regular = spec.iterations // every if every else 0
    at_the_end = 0 if every and spec.iterations % every == 0 else 1
    return 1 + regular + at_the_end


def try_workload(home: Path, spec: RunSpec) -> WorkloadTrial:
    """Returns what a workload does until its first update, which nothing keeps."""
    from yatt_core.engines.registry import build_train_engine
    from yatt_core.experience.prepared import read_prepared_files
    from yatt_core.keys import WorkKey
    from yatt_core.protocols.engines import RankContext
    from yatt_core.protocols.receipts import BatchTask, PromptRef, RowsTask
    from yatt_core.workloads.columns import column_files, decode_columns
    from yatt_core.workloads.images import IMAGES, SUFFIX
    from yatt_core.workloads.inputs import materialise_workload

    began = time.perf_counter()
    trainer = spec.trainer.model_copy(update={"engine": spec.trainer.engine.model_copy(update={"ranks": 1})})
    alone = spec.model_copy(update={"trainer": trainer})
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".check-", dir=home) as scratch:
        folder = Path(scratch)
        inputs = folder / materialise_workload(alone, folder).folder
        files = [path for path in inputs.rglob("*") if path.is_file()]
        engine = build_train_engine(alone, RankContext(folder, inputs, "", 0))
        engine.connect(0, 1, "")
        engine.initialise()
        state_bytes = engine.freeze_state().nbytes
        begun = time.perf_counter()
        found = engine.evaluate(RowsTask(WorkKey(TRIED, 0, 0, "evaluate"), 1))
        evaluated = time.perf_counter()
        receipt = engine.prepare(BatchTask(WorkKey(TRIED, 0, 1, "prepare"), 1, (), rows=(PromptRef(0, 0, 0),)))
        assert receipt is not None, "there is one rank"
        (data,) = read_prepared_files(folder, receipt.folder, receipt.files, column_files(receipt.files))
        columns = {
            name: f"{column.dtype} {list(column.shape)}"
            for name, column in decode_columns(data, receipt.folder).items()
        }
        update = engine.learn(BatchTask(WorkKey(TRIED, 0, 1, "learn"), 1, (), rows=(PromptRef(0, 0, 0),)), receipt)
        ended = time.perf_counter()
        sampler_bytes = _try_sampler(alone, folder, inputs) if spec.has.samplers else 0
        of_iterations = (ended - evaluated) * spec.iterations
        of_evaluations = (evaluated - begun) * evaluations_of(spec)
        return WorkloadTrial(
            files=len(files) - 1,  # the manifest is not its own
            input_bytes=sum(path.stat().st_size for path in files),
            columns=columns,
            figures=dict(found.metrics),
            learnt=dict(update.metrics),
            state_bytes=state_bytes,
            sampler_bytes=sampler_bytes,
            image_bytes=sum(path.stat().st_size for path in (folder / receipt.folder).glob(f"{IMAGES}/*{SUFFIX}")),
            seconds=ended - began,
            forecast_seconds=begun - began + of_iterations + of_evaluations,
        )


def _try_sampler(spec: RunSpec, folder: Path, inputs: Path) -> int:
    """Returns the bytes of the weights that a sampler gets, which draws a shard with those that it begins with.

    Raises as a sampler of a run does.
    """
    from yatt_core.engines.rollout.workload.engine import WorkloadSampler
    from yatt_core.keys import WorkKey
    from yatt_core.protocols.receipts import SampleTask

    sampler = WorkloadSampler(spec, folder, inputs)
    sampler.keep_initial_weights()
    sampler.sample(SampleTask(key=WorkKey(TRIED, 0, 1, "collect"), term=1, number=0, version=0))
    return sampler.nbytes
