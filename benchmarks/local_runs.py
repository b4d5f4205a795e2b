"""Trains runs in this process: the product's collector, engines, trainer, checkpoints and ledger, without Ray.

Consumes runs of a home. Produces their committed iterations and a checkpoint at the last one, as drivers do. Iterations are
committed once a run is where it is to go, so that a kill leaves a run at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from benchmarks.common import progress
from db.core.engine import Fence
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import Metric
from db.write.records import CheckpointRow
from flows.members.driving import Goals
from flows.run.control_state import ControlState
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.lease import operator_lease
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.collection.collector import Collector
from yatt_core.collection.open_shards import OpenBatch
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.engines.registry import build_rollout_engine, build_train_engine
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.materialise import initial_model, materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import WorkKey, checkpoint_folder
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.stream import draw
from yatt_core.protocols.engines import RankContext, RolloutEngine, Tensors, TrainEngine
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.receipts import BatchTask, ShardRef, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.tools.toolbox import Toolbox

CHECKPOINT_BYTES = 16 << 20
Measure = Callable[[Tensors], Sequence[Metric]]


class Done(NamedTuple):
    """An iteration that is to be committed."""

    state: ControlState
    weights_digest: str
    metrics: Sequence[Metric]


class StreamWithoutJudges:
    """What a stream of decode batches has for judges and their placement, where there are none."""

    peak_bytes = 0

    def submit_judging(self, tag: OpenBatch, part: str, request: Any) -> None:
        """Refuses: the runs have no judges."""
        raise NotImplementedError(part)

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Ignores how far a wave has come."""


class LocalStream(StreamWithoutJudges):
    """A stream of decode batches that one engine of this process answers in turn."""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine
        self._waiting = list[tuple[int, OpenBatch, GenerateRequest]]()
        self._ahead = 0
        self._submitted = 0

    def submit(self, tag: OpenBatch, request: GenerateRequest, ahead: bool = False) -> int:
        """Requests a decode batch; returns its number. As in a run, what goes ahead goes behind what was put ahead before."""
        self._submitted += 1
        place = self._ahead if ahead else len(self._waiting)
        self._waiting.insert(place, (self._submitted, tag, request))
        self._ahead += ahead
        return self._submitted

    def arrivals(
        self, beside: Callable[[], bool] = nothing
    ) -> Iterator[Arrival[OpenBatch] | VerdictArrival[OpenBatch] | None]:
        """Yields the answers."""
        while self._waiting or beside():
            if not self._waiting:
                yield None
                continue
            number, tag, request = self._waiting.pop(0)
            self._ahead = max(0, self._ahead - 1)
            missing = set(range(request.seeds.size))
            for piece in self._engine.stream(request):
                if piece is not None:
                    missing.difference_update(piece.rows)
                    yield Arrival(number, tag, piece, complete=not missing)


class LocalRuns:
    """Drives runs one after another in this process; `flows.members.driving.Drives`.

    measure: returns the metrics of an evaluation; by default none is made.
    iterations: number of iterations trained so far.
    """

    def __init__(self, home: Home, ledger: Ledger, measure: Measure | None = None) -> None:
        self._home = home
        self._ledger = ledger
        self._measure = measure
        self.iterations = 0

    def __call__(self, goals: Goals) -> None:
        """Trains runs until no goals are left."""
        while left := goals():
            run, until = next(iter(left.items()))
            with operator_lease(self._ledger, run, f"benchmark of {run}") as lease:
                fence = lease.fence
                self._train(fence, until)
                self._ledger.runs.set_state(fence, "stopped")

    def _train(self, fence: Fence, until: int) -> None:
        ledger = self._ledger
        run = fence.run
        folder = self._home.run_folder(fence.run)
        spec = current_spec(ledger, run)
        if spec.asynchrony.overlaps or spec.sliced:
            raise ConfigurationError(
                f"{run}: asynchrony and rollout.slice_tokens need drivers; here an iteration is collected whole, then learnt from"
            )
        materialise(spec, folder)
        model = initial_model(spec, folder)
        trainer = build_train_engine(spec, RankContext(folder, folder / INPUTS, model, 0))
        trainer.connect(0, 1, "")
        trainer.initialise()
        state = self._begin(fence, spec, trainer)
        if state.iteration < until:
            engine = build_rollout_engine(spec, model, folder / INPUTS)
            inputs = Inputs.open(folder / INPUTS, spec)
            with closing(Toolbox(spec.rollout.tools)) as toolbox:
                scorer = RewardScorer(spec.rewards, folder)
                collector = Collector(
                    spec=spec,
                    run_folder=folder,
                    inputs=inputs,
                    codec=open_codec(spec, model),
                    scorer=scorer,
                    toolbox=toolbox,
                )
                done: list[Done] = []
                while state.iteration < until:
                    state = self._iterate(
                        fence=fence, spec=spec, collector=collector, engine=engine, trainer=trainer, state=state
                    )
                    done.append(self._done(spec, state, trainer))
            for each in done:
                self._commit(fence, each)
            _take_checkpoint(ledger=ledger, fence=fence, spec=spec, trainer=trainer, home=self._home, iteration=until)
        progress(f"{run}: iteration {until}")

    def _begin(self, fence: Fence, spec: RunSpec, trainer: TrainEngine) -> ControlState:
        """Returns the state of the last commit with its weights loaded; first makes iteration 0 if there is none."""
        commit = self._ledger.commits.latest(fence.run)
        folder = self._home.run_folder(fence.run)
        if commit is None:
            if spec.sft is not None:
                trainer.sft()
            state = replace(ControlState.initial(spec.data), iteration=0)
            self._commit(fence, self._done(spec, state, trainer))
            _take_checkpoint(ledger=self._ledger, fence=fence, spec=spec, trainer=trainer, home=self._home, iteration=0)
            return state
        row = next(row for row in self._ledger.records.checkpoints(fence.run) if row.is_meant(commit.iteration))
        trainer.restore(folder / row.folder, commit.iteration)
        return ControlState.from_json(commit.state)

    def _iterate(
        self,
        fence: Fence,
        spec: RunSpec,
        collector: Collector,
        engine: RolloutEngine,
        trainer: TrainEngine,
        state: ControlState,
    ) -> ControlState:
        iteration = state.iteration + 1
        shards = spec.shards
        engine.update_weights(dict(trainer.stream_weights()), state.iteration)
        references, cursor = draw(spec.data, spec.seed, state.cursor, spec.data.prompts_per_iteration)
        size = -(-len(references) // shards)
        tasks = [
            ShardTask(
                WorkKey(fence.run, 0, iteration, "collect", shard=shard),
                fence.term,
                references[shard * size : (shard + 1) * size],
                state.iteration,
            )
            for shard in range(shards)
        ]
        receipts = sorted(collector.collect(tasks, LocalStream(engine)), key=lambda receipt: receipt.key.shard)
        sealed = tuple(ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts)
        key = WorkKey(fence.run, 0, iteration, "prepare")
        task = BatchTask(key, fence.term, sealed, reward_moments=state.reward_moments)
        prepared = trainer.prepare(task)
        assert prepared is not None, "the only rank returns the receipt"
        trainer.learn(replace(task, key=replace(key, phase="learn")), prepared)
        after = replace(state, iteration=iteration, cursor=cursor, reward_moments=prepared.reward_moments)
        self.iterations += 1
        return after

    def _done(self, spec: RunSpec, state: ControlState, trainer: TrainEngine) -> Done:
        every = spec.evaluation.every
        at = state.iteration
        due = at == spec.iterations or (every > 0 and at % every == 0)
        metrics = self._measure(dict(trainer.stream_weights())) if due and self._measure is not None else ()
        return Done(state, trainer.weights_digest(), metrics)

    def _commit(self, fence: Fence, done: Done) -> None:
        iteration = done.state.iteration
        state = done.state.to_json()
        commit = IterationCommit(0, iteration, state, 0, weights_digest=done.weights_digest, metrics=done.metrics)
        self._ledger.commits.commit(fence, commit)


def _take_checkpoint(
    ledger: Ledger, fence: Fence, spec: RunSpec, trainer: TrainEngine, home: Home, iteration: int
) -> None:
    name = str(checkpoint_folder(0, iteration, fence.term))
    identity = CheckpointIdentity(
        run=fence.run,
        branch=0,
        iteration=iteration,
        term=fence.term,
        spec_digest=spec.digest,
        weights_digest=trainer.weights_digest(),
    )
    frozen: Any = trainer.freeze_state()
    receipt = publish_checkpoint(
        run_folder=home.run_folder(fence.run),
        folder=name,
        identity=identity,
        write=frozen,
        needed_bytes=CHECKPOINT_BYTES,
    )
    ledger.records.checkpoint(fence, CheckpointRow(fence.run, **asdict(receipt)))
