"""A training run in this process: the product's collector, engines, rewards, judges and trainer, without Ray and Prefect.

Consumes a spec and a folder. Produces the held-out accuracies, and the folder of the run with its sealed experience. The
prompts, seeds and shards are those of a real run; only one process works, so that many short runs fit on a few cores.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from flows.phases.sealed_groups import split_shards
from yatt_core.algorithms.moments import RewardMoments
from yatt_core.collection.collector import Collector
from yatt_core.dispatch.stream import Arrival, VerdictArrival
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.train.steps.coefficients import adapted
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.evaluation.answers import TaskAnswers
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.judges.loading import load_judges
from yatt_core.keys import WorkKey
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.engines import RankContext, RolloutEngine
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.judges import Judge, JudgeItem, JudgeRequest
from yatt_core.protocols.receipts import BatchTask, ShardRef, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.tools.toolbox import Toolbox

Weights = dict[str, npt.NDArray[Any]]


@dataclass(slots=True)
class LocalStream:
    """A stream whose decode batches and questions an engine and judges in this process answer, one after the other.

    judge_seconds: processor seconds that the judges took.
    """

    engine: RolloutEngine
    judges: dict[str, Judge]
    peak_bytes: int = 0
    judge_seconds: float = 0.0
    _requests: list[tuple[Any, GenerateRequest]] = field(default_factory=list)
    _questions: list[tuple[Any, str, JudgeRequest]] = field(default_factory=list)

    def submit(self, tag: Any, request: GenerateRequest) -> None:
        """Requests a decode batch."""
        self._requests.append((tag, request))

    def submit_judging(self, tag: Any, part: str, request: JudgeRequest) -> None:
        """Requests verdicts."""
        self._questions.append((tag, part, request))

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Does nothing: there is no placement."""

    def arrivals(self) -> Iterator[Arrival[Any] | VerdictArrival[Any]]:
        """Yields the answers until nothing is left; all responses of a batch are judged together."""
        number = 0
        while self._requests or self._questions:
            while self._requests:
                tag, request = self._requests.pop(0)
                missing = set(range(request.seeds.size))
                for piece in self.engine.stream(request):
                    if piece is not None:
                        missing.difference_update(piece.rows)
                        yield Arrival(number, tag, piece, complete=not missing)
                number += 1
            yield from self._verdicts()

    def _verdicts(self) -> Iterator[VerdictArrival[Any]]:
        questions = self._questions
        self._questions = []
        together: dict[tuple[int, str], tuple[Any, list[JudgeItem]]] = {}
        for tag, part, request in questions:
            together.setdefault((id(tag), part), (tag, []))[1].extend(request.items)
        for (_, part), (tag, items) in together.items():
            started = time.process_time()
            verdicts = [one for piece in self.judges[part].judge(JudgeRequest(tuple(items))) for one in piece]
            self.judge_seconds += time.process_time() - started
            yield VerdictArrival(tag, part, tuple(verdicts))


class InProcessRun:
    """A run whose spec has a model's folder and no SFT, iteration by iteration.

    lag: number of iterations by which the sampler's weights are older than those of a synchronous run.
    """

    def __init__(self, spec: RunSpec, folder: Path, lag: int = 0) -> None:
        self._spec = spec
        self._folder = folder
        self._model = materialise(spec, folder).model_path
        self._inputs = Inputs.open(folder / INPUTS, spec)
        self._codec = open_codec(spec, self._model)
        self._trainer = started_trainer(spec, folder, self._model)
        self._scorer = RewardScorer(spec.rewards, folder)
        self._toolbox = Toolbox(None)
        self._stream = LocalStream(
            build_rollout_engine(spec, self._model, folder / INPUTS),
            load_judges(spec, folder / INPUTS, spec.rewards.judges),
        )
        self._cursor = Cursor.start(spec.data)
        self._moments = RewardMoments()
        self._coefficients = dict[str, float]()
        self._recent: deque[Weights] = deque([weights_of(self._trainer)], maxlen=lag + 1)
        self.iteration = 0
        self._sync(self._recent[0])

    def close(self) -> None:
        """Ends the tools' process."""
        self._toolbox.close()

    @property
    def judge_seconds(self) -> float:
        """Processor seconds that the judges took."""
        return self._stream.judge_seconds

    def iterate(self) -> float:
        """Collects and learns one iteration; returns the fraction of its samples that are right."""
        spec = self._spec
        version = self.iteration
        self.iteration = self.iteration + 1
        references, self._cursor = draw(spec.data, spec.seed, self._cursor, spec.data.prompts_per_iteration)
        tasks = [
            ShardTask(
                WorkKey(run="run", branch=0, iteration=self.iteration, phase="collect", wave=0, shard=shard),
                1,
                prompts,
                version,
            )
            for shard, prompts in enumerate(split_shards(references, spec.shards))
        ]
        collector = Collector(
            spec=spec,
            run_folder=self._folder,
            inputs=self._inputs,
            codec=self._codec,
            scorer=self._scorer,
            toolbox=self._toolbox,
        )
        sealed = sorted(collector.collect(tasks, self._stream), key=lambda receipt: receipt.key.shard)
        self._learn(tuple(ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in sealed))
        self._recent.append(weights_of(self._trainer))
        self._sync(self._recent[0])
        return sum(one.sums["correct"] for one in sealed) / sum(one.sums["samples"] for one in sealed)

    def accuracy(self) -> float:
        """Returns the greedy accuracy of the trainer's weights on the held-out tasks."""
        self._sync(self._recent[-1])
        engine = self._stream.engine
        answers = TaskAnswers(self._spec, self._codec, self._scorer, self._toolbox)
        right = 0
        for batch in answers.batches(0, self._inputs.held_out):
            answers.hear(batch, engine.generate(answers.request(batch, self.iteration)))
            right += sum(result.correct for result in answers.results(batch))
        self._sync(self._recent[0])
        return right / len(self._inputs.held_out)

    def save(self, to: Path) -> None:
        """Writes the trainer's weights as a model's folder."""
        save_model(self._recent[-1], self._model, to)

    def _learn(self, shards: tuple[ShardRef, ...]) -> None:
        key = WorkKey("run", 0, self.iteration, "learn")
        task = BatchTask(key, 1, shards, reward_moments=self._moments, coefficients=self._coefficients)
        prepared = self._trainer.prepare(task)
        assert prepared is not None, "the only rank publishes"
        update = self._trainer.learn(task, prepared)
        self._moments = prepared.reward_moments
        self._coefficients = adapted(self._spec, self._coefficients, {**prepared.metrics, **update.metrics})

    def _sync(self, weights: Weights) -> None:
        self._stream.engine.update_weights(weights, self.iteration)


@dataclass(frozen=True, slots=True)
class LocalRun:
    """The outcome of a run: held-out accuracy at the start and at the end, and the judges' processor seconds.

    sampled: fraction of an iteration's samples that are right.
    """

    accuracy_sft: float
    accuracy: float
    judge_seconds: float
    sampled: list[float]


def train(spec: RunSpec, folder: Path, lag: int = 0, to: Path | None = None) -> LocalRun:
    """Trains a spec whose model is a folder, without SFT, to its last iteration.

    lag: as in `InProcessRun`.
    to: where the last weights are written as a model's folder; None: nowhere.
    """
    with closing(InProcessRun(spec, folder, lag)) as run:
        start = run.accuracy()
        sampled = [run.iterate() for _ in range(spec.iterations)]
        if to is not None:
            run.save(to)
        return LocalRun(start, run.accuracy(), run.judge_seconds, sampled)


def trained_start(spec: RunSpec, folder: Path, to: Path) -> None:
    """Builds a run's inputs and the model of its spec, fine-tunes it, and writes it as a model's folder."""
    model = materialise(spec, folder).model_path
    trainer = started_trainer(spec, folder, model)
    trainer.sft()
    save_model(weights_of(trainer), model, to)


def started_trainer(spec: RunSpec, folder: Path, model: str) -> TorchTrainEngine:
    """Returns a trainer of one rank with the weights of a model's folder."""
    trainer = TorchTrainEngine(spec, RankContext(folder, folder / INPUTS, model, 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    return trainer


def weights_of(trainer: TorchTrainEngine) -> Weights:
    """Copies the weights that a sampler receives."""
    return {name: np.array(tensor) for name, tensor in trainer.stream_weights()}


def save_model(weights: Weights, like: str, to: Path) -> None:
    """Writes a model's folder; it appears complete or not at all. like: the folder of a model that differs in its weights."""
    unfinished = to.with_name(f".{to.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for path in Path(like).iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, unfinished / path.name)
    safetensors.numpy.save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    unfinished.rename(to)
