"""A training run in this process: the product's collector, engines, rewards, judge and trainer, without Ray and Prefect.

Consumes a spec and a folder. Produces the held-out accuracies, and the folder of the run with its sealed experience. The
prompts, seeds and shards are those of a real run; only one process works, so that many short runs fit on a few cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.numpy

from flows.phases.experience import split_shards
from yatt_core.collection.collector import Collector
from yatt_core.dispatch.stream import Arrival, Judged
from yatt_core.engines.registry import build_rollout_engine
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

    def arrivals(self) -> Iterator[Arrival[Any] | Judged[Any]]:
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

    def _verdicts(self) -> Iterator[Judged[Any]]:
        questions, self._questions = self._questions, []
        together: dict[tuple[int, str], tuple[Any, list[JudgeItem]]] = {}
        for tag, part, request in questions:
            together.setdefault((id(tag), part), (tag, []))[1].extend(request.items)
        for (_, part), (tag, items) in together.items():
            started = time.process_time()
            verdicts = [one for piece in self.judges[part].judge(JudgeRequest(tuple(items))) for one in piece]
            self.judge_seconds += time.process_time() - started
            yield Judged(tag, part, tuple(verdicts))


@dataclass(frozen=True, slots=True)
class LocalRun:
    """The outcome of a run: held-out accuracy at the start and at the end, and the judges' processor seconds.

    sampled: fraction of an iteration's samples that are right.
    """

    accuracy_sft: float
    accuracy: float
    judge_seconds: float
    sampled: list[float]


def trained_start(spec: RunSpec, folder: Path, to: Path) -> None:
    """Builds a run's inputs and the model of its spec, fine-tunes it, and writes it as a model's folder."""
    made = materialise(spec, folder)
    trainer = TorchTrainEngine(spec, RankContext(folder, folder / INPUTS, made.model_path, 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    trainer.sft()
    to.mkdir()
    for path in Path(made.model_path).iterdir():
        if path.suffix != ".safetensors":
            (to / path.name).write_bytes(path.read_bytes())
    weights = {name: array.copy() for name, array in trainer.stream_weights()}
    safetensors.numpy.save_file(weights, to / "model.safetensors", metadata={"format": "pt"})


def train(spec: RunSpec, folder: Path) -> LocalRun:
    """Trains a spec whose model is a folder, without SFT, to its last iteration."""
    made = materialise(spec, folder)
    inputs, codec = Inputs.open(folder / INPUTS, spec), open_codec(spec, made.model_path)
    trainer = TorchTrainEngine(spec, RankContext(folder, folder / INPUTS, made.model_path, 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    engine = build_rollout_engine(spec, made.model_path, folder / INPUTS)
    scorer, cursor = RewardScorer(spec.rewards, folder), Cursor.start(spec.data)
    stream = LocalStream(engine, load_judges(spec, folder / INPUTS, spec.rewards.judges))

    def sync(version: int) -> None:
        engine.update_weights({name: array.copy() for name, array in trainer.stream_weights()}, version)

    with closing(Toolbox(None)) as toolbox:
        answers = TaskAnswers(spec, codec, scorer, toolbox)

        def accuracy(version: int) -> float:
            right = 0
            for batch in answers.batches(0, inputs.held_out):
                answers.hear(batch, engine.generate(answers.request(batch, version)))
                right += sum(result.correct for result in answers.results(batch))
            return right / len(inputs.held_out)

        sync(0)
        start, sampled = accuracy(0), list[float]()
        for iteration in range(1, spec.iterations + 1):
            references, cursor = draw(spec.data, spec.seed, cursor, spec.data.prompts_per_iteration)
            tasks = [
                ShardTask(WorkKey("run", 0, iteration, "collect", 0, shard), 1, prompts, iteration - 1)
                for shard, prompts in enumerate(split_shards(references, spec.shards))
            ]
            collector = Collector(spec, folder, inputs, codec, scorer, toolbox)
            sealed = sorted(collector.collect(tasks, stream), key=lambda receipt: receipt.key.shard)
            sampled.append(sum(one.sums["correct"] for one in sealed) / sum(one.sums["samples"] for one in sealed))
            shards = tuple(ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in sealed)
            task = BatchTask(WorkKey("run", 0, iteration, "learn"), 1, shards)
            prepared = trainer.prepare(task)
            assert prepared is not None, "the only rank publishes"
            trainer.learn(task, prepared)
            sync(iteration)
        return LocalRun(start, accuracy(spec.iterations), stream.judge_seconds, sampled)
