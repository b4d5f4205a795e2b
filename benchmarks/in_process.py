"""A training run in this process: the product's collector, engines, rewards, judges and trainer, without Ray and Prefect.

Consumes a spec and a folder. Produces the held-out accuracies, and the folder of the run with its sealed experience. The
prompts, seeds and shards are those of a real run; only one process works, so that many short runs fit on a few cores.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from flows.phases.sealed_groups import learnt_references, places_of, split_shards
from yatt_core.algorithms.moments import RewardMoments
from yatt_core.collection.collector import Collector
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.train.steps.coefficients import adapted
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.evaluation.answers import TaskAnswers
from yatt_core.experience.batch import load_table
from yatt_core.experience.shard_log import read_learnt_facts
from yatt_core.experience.slicing import (
    DrawnGroup,
    SliceRule,
    Slicing,
    StartedGroup,
    admission_of_groups,
    wave_plan_of,
)
from yatt_core.experience.table import STRETCH_VERSIONS
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
from yatt_core.protocols.receipts import (
    Admission,
    BatchTask,
    PromptRef,
    ShardPlace,
    ShardReceipt,
    ShardRef,
    ShardTask,
    SliceTask,
)
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
    _requests: list[tuple[int, Any, GenerateRequest]] = field(default_factory=list)
    _submitted: int = 0
    _questions: list[tuple[Any, str, JudgeRequest]] = field(default_factory=list)

    def submit(self, tag: Any, request: GenerateRequest, ahead: bool = False) -> int:
        """Requests a decode batch; returns its number."""
        self._submitted += 1
        self._requests.insert(0 if ahead else len(self._requests), (self._submitted, tag, request))
        return self._submitted

    def submit_judging(self, tag: Any, part: str, request: JudgeRequest) -> None:
        """Requests verdicts."""
        self._questions.append((tag, part, request))

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Does nothing: there is no placement."""

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        """Yields the answers until nothing is left; all responses of a batch are judged together."""
        while self._requests or self._questions or beside():
            while self._requests:
                number, tag, request = self._requests.pop(0)
                missing = set(range(request.seeds.size))
                for piece in self.engine.stream(request):
                    if piece is not None:
                        missing.difference_update(piece.rows)
                        yield Arrival(number, tag, piece, complete=not missing)
            yield from self._verdicts()
            if not self._requests and not self._questions and beside():
                yield None

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


@dataclass(frozen=True, slots=True)
class Gathered:
    """What an iteration learns from.

    admission: the groups to learn from; None: all.
    right, samples: of these, the responses that are right, and all.
    crossed: responses that were drawn under the weights of several versions.
    """

    shards: tuple[ShardRef, ...]
    right: float
    samples: float
    admission: Admission | None = None
    crossed: int = 0


class InProcessRun:
    """A run whose spec has a model's folder and no SFT, iteration by iteration.

    It may learn shard by shard (`asynchrony.streamed`), and its responses may go on in later iterations (`rollout.slice_tokens`,
    `rollout.tail`).

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
        self._rule = SliceRule.of(spec)
        self._carried: tuple[StartedGroup, ...] = ()
        self._sealed = dict[ShardPlace, ShardReceipt]()
        self.crossed = 0
        self.samples = 0.0
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
        self.iteration = self.iteration + 1
        gathered = self._whole() if self._rule is None else self._in_parts(self._rule)
        self._learn(gathered)
        self._recent.append(weights_of(self._trainer))
        self._sync(self._recent[0])
        self.crossed += gathered.crossed
        self.samples += gathered.samples
        return gathered.right / gathered.samples

    def _whole(self) -> Gathered:
        """Draws every response to its end."""
        spec = self._spec
        references, self._cursor = draw(spec.data, spec.seed, self._cursor, spec.data.prompts_per_iteration)
        sealed = self._collect(0, split_shards(references, spec.shards), {})
        return Gathered(
            shards=tuple(ref_of(receipt) for receipt in sealed),
            right=sum(one.sums["correct"] for one in sealed),
            samples=sum(one.sums["samples"] for one in sealed),
        )

    def _in_parts(self, rule: SliceRule) -> Gathered:
        """Draws rounds until enough groups are complete, as the driver does."""
        spec = self._spec
        slicing = Slicing(rule, self.iteration, self._carried)
        while not slicing.finished:
            new, self._cursor = draw(spec.data, spec.seed, self._cursor, slicing.wanted)
            plan = slicing.plan(new)
            shards = wave_plan_of(plan, slicing).shards
            tasks = [
                SliceTask(
                    started=group.iteration,
                    tokens=tokens,
                    place=group.sealed,
                    sealed=None if group.sealed is None else ref_of(self._sealed[group.sealed]),
                    kept=group.kept,
                )
                for group, tokens in zip(plan.groups, plan.tokens, strict=True)
            ]
            prompts = split_shards([group.ref for group in plan.groups], shards)
            sealed = self._collect(plan.number, prompts, dict(enumerate(split_shards(tasks, shards))))
            self._sealed |= {ShardPlace(self.iteration, plan.number, one.key.shard): one for one in sealed}
            outcome = slicing.settle(plan, self._drawn(prompts, sealed, rule))
            slicing = slicing.after(plan, outcome)
        self._carried = slicing.carried
        return self._learnt(slicing.learnt)

    def _drawn(
        self, prompts: Sequence[tuple[PromptRef, ...]], sealed: Sequence[ShardReceipt], rule: SliceRule
    ) -> dict[int, DrawnGroup]:
        drawn = {}
        for refs, receipt in zip(prompts, sealed, strict=True):
            facts = receipt.slices
            assert facts is not None, "a round says what it made of its groups"
            place = ShardPlace(self.iteration, receipt.key.wave, receipt.key.shard)
            for number, ref in enumerate(refs):
                usable = facts.scored[number] >= rule.least_scored
                drawn[ref.ordinal] = DrawnGroup(place, facts.completed[number], usable, facts.lengths[number])
        return drawn

    def _learnt(self, groups: Sequence[StartedGroup]) -> Gathered:
        places = sorted(places_of(groups))
        shards = learnt_references(groups, {place: self._sealed[place] for place in places})
        facts = {place: read_learnt_facts(self._folder, self._sealed[place]) for place in places}
        own = [facts[group.sealed][group.ref.ordinal] for group in groups if group.sealed is not None]
        ordinals = {group.ref.ordinal for group in groups}
        rows = load_table(self._folder, shards).select(["prompt_ordinal", STRETCH_VERSIONS]).to_pylist()
        return Gathered(
            shards=shards,
            right=sum(one.sums["correct"] for one in own),
            samples=sum(one.sums["samples"] for one in own),
            admission=admission_of_groups(groups),
            crossed=sum(len(set(row[STRETCH_VERSIONS])) > 1 for row in rows if row["prompt_ordinal"] in ordinals),
        )

    def _collect(
        self, wave: int, prompts: Sequence[tuple[PromptRef, ...]], slices: Mapping[int, tuple[SliceTask, ...]]
    ) -> list[ShardReceipt]:
        """Returns the receipts of a wave's shards in their order. slices: of each shard, how its responses go on."""
        version = self.iteration - 1
        tasks = [
            ShardTask(
                key=WorkKey(run="run", branch=0, iteration=self.iteration, phase="collect", wave=wave, shard=shard),
                term=1,
                prompts=refs,
                weight_version=version,
                slices=slices.get(shard, ()),
            )
            for shard, refs in enumerate(prompts)
        ]
        collector = Collector(
            spec=self._spec,
            run_folder=self._folder,
            inputs=self._inputs,
            codec=self._codec,
            scorer=self._scorer,
            toolbox=self._toolbox,
        )
        return sorted(collector.collect(tasks, self._stream), key=lambda receipt: receipt.key.shard)

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

    def _learn(self, gathered: Gathered) -> None:
        key = WorkKey("run", 0, self.iteration, "learn")
        task = BatchTask(
            key=key,
            term=1,
            shards=gathered.shards,
            admission=gathered.admission,
            reward_moments=self._moments,
            coefficients=self._coefficients,
        )
        if self._spec.asynchrony.streamed:
            for count in range(1, len(gathered.shards) + 1):
                self._trainer.accumulate(replace(task, shards=gathered.shards[:count]))
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
    crossed: fraction of the samples that were drawn under the weights of several versions.
    """

    accuracy_sft: float
    accuracy: float
    judge_seconds: float
    sampled: list[float]
    crossed: float = 0.0


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
        return LocalRun(
            accuracy_sft=start,
            accuracy=run.accuracy(),
            judge_seconds=run.judge_seconds,
            sampled=sampled,
            crossed=run.crossed / run.samples,
        )


def ref_of(receipt: ShardReceipt) -> ShardRef:
    """Returns a sealed shard as tasks name it."""
    return ShardRef(receipt.folder, receipt.manifest_sha256)


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
