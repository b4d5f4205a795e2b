"""The parallel controller: a Ray actor that owns logical shards and produces their experience from start to finish.

Consumes shard tasks (prompt references, never prompts); gets responses from the rollout pool and scores from
the reward functions; produces sealed experience files and receipts. The result is
bit-identical for any number of controllers, since seeds, decode batches and files depend only on the logical shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.leftovers import Leftovers
from yatt_core.actors.presence import Presence
from yatt_core.actors.use_meter import MemoryMeter, ProcessUse
from yatt_core.collection.collector import Collector
from yatt_core.collection.open_shards import OpenBatch
from yatt_core.dispatch.generation import GenerationStream
from yatt_core.dispatch.in_flight import BytesInFlight
from yatt_core.dispatch.pool import judge_roles
from yatt_core.errors import InfrastructureError
from yatt_core.evaluation.answers import TaskAnswers, TaskBatch
from yatt_core.input_building.settling import settle_inputs
from yatt_core.inputs.reader import Inputs
from yatt_core.logs import actor_logs, log_context
from yatt_core.prompts.codec import TextCodec, open_codec
from yatt_core.protocols.answers import AnsweredTasks
from yatt_core.protocols.receipts import (
    ActorIdentity,
    EvaluateTask,
    InputsReceipt,
    ShardReceipt,
    ShardTask,
    TaskResult,
)
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import open_store
from yatt_core.tools.toolbox import Toolbox


class Controller:
    """One of the run's controllers."""

    def __init__(self, spec_json: str, run_folder: str, index: int, term: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._folder = Path(run_folder)
        self._name = f"controller-{index}"
        self._identity = actor_logs(self._folder, self._name, term)
        self._presence = Presence(self._name, term, self._spec.recovery.grace_seconds)
        self._memory = MemoryMeter()
        self._scorer = RewardScorer(self._spec.rewards, self._folder)
        self._toolbox = Toolbox(self._spec.rollout.tools, self._folder)
        self._store = open_store(self._spec, self._folder)
        self._inputs: Inputs | None = None
        self._codec: TextCodec | None = None
        self._dispatcher: Any = None

    def materialise(self, term: int) -> InputsReceipt:
        """Writes the run's inputs (prompts, tokenizer, initial model) unless they exist already."""
        with self._presence.serving("materialise", term):
            return settle_inputs(self._spec, self._folder, self._store)

    def load(self, term: int, inputs: InputsReceipt, dispatcher: Any) -> ActorIdentity:
        """Opens the inputs, which never change, and stores the handle of the rollout pool's dispatcher."""
        with self._presence.serving("load", term):
            if self._inputs is None:
                self._inputs = Inputs.open(self._folder / inputs.folder, self._spec)
                self._codec = open_codec(self._spec, inputs.model_path)
            self._dispatcher = dispatcher
        own = self._identity
        return ActorIdentity(own.name, own.pid, own.node, holds=own_holdings())

    def collect(self, tasks: Sequence[ShardTask]) -> Iterator[ShardReceipt]:
        """Produces shards and yields each receipt as soon as its manifest is durable.

        Decode batches of all shards are in flight together, as many as the limit on bytes in flight allows,
        and finished prompts are scored while their engine works on the rest of the batch. Batches and shards
        that an earlier attempt finished are read from disk. The driver's death in the meantime changes nothing:
        the work runs to completion, and the next driver's call, queued after it, adopts the sealed results.
        """
        if not tasks:
            return
        inputs, codec = self._ready()
        in_flight = BytesInFlight(self._spec.controllers.bytes_in_flight)
        roles = judge_roles(self._spec)
        collector = Collector(
            spec=self._spec,
            run_folder=self._folder,
            inputs=inputs,
            codec=codec,
            scorer=self._scorer,
            toolbox=self._toolbox,
            store=self._store,
        )
        with (
            self._presence.serving("collect", tasks[0].term),
            GenerationStream[OpenBatch](
                dispatcher=self._dispatcher,
                owner=self._name,
                fence=self._presence.fence,
                in_flight=in_flight,
                judge_roles=roles,
            ) as stream,
            log_context(iteration=tasks[0].key.iteration, phase="collect"),
        ):
            yield from collector.collect(tasks, stream)

    def evaluate(self, task: EvaluateTask) -> Iterator[AnsweredTasks]:
        """Answers held-out tasks and yields the scored answers of each decode batch, until the rest is cut."""
        inputs, codec = self._ready()
        answers = TaskAnswers(self._spec, codec, self._scorer, self._toolbox)
        in_flight = BytesInFlight(self._spec.controllers.bytes_in_flight)
        with (
            self._presence.serving("evaluate", task.term),
            GenerationStream[TaskBatch](self._dispatcher, self._name, self._presence.fence, in_flight) as stream,
            log_context(iteration=task.key.iteration, phase="evaluate"),
        ):
            for batch in answers.batches(task.start, inputs.held_out[task.start : task.stop]):
                if task.only is None or not task.only.isdisjoint(batch.rows):
                    stream.submit(batch, answers.request(batch, task.weight_version))
            for batch, result in stream.results():
                if answers.hear(batch, result):
                    stream.submit(batch, answers.request(batch, task.weight_version))
                else:
                    yield _answered(task, batch.rows, answers.results(batch))

    def process_use(self, term: int) -> ProcessUse:
        """Returns what the process and its children hold; it has no device."""
        with self._presence.serving("process_use", term):
            return ProcessUse(None, self._memory.read(), self._presence.times.take())

    def answers(self, term: int, dependency: str) -> bool | None:
        """Returns whether what a reward function or a tool asks answers again; None if something else is away."""
        with self._presence.serving("answers", term):
            found = self._scorer.answers(dependency)
            return self._toolbox.answers(dependency) if found is None else found

    def tidy(self, term: int, leftovers: Leftovers) -> None:
        """Deletes files of this node's disk that the run no longer needs."""
        with self._presence.serving("tidy", term):
            leftovers.remove(self._folder)

    def _ready(self) -> tuple[Inputs, TextCodec]:
        if self._inputs is None or self._codec is None:
            raise InfrastructureError(f"{self._name} was called before it was loaded")
        return self._inputs, self._codec


def _answered(task: EvaluateTask, rows: range, results: Sequence[TaskResult]) -> AnsweredTasks:
    """Returns the results of a decode batch that are wanted; its other tasks only shared the batch."""
    wanted = [(row, found) for row, found in zip(rows, results, strict=True) if task.only is None or row in task.only]
    return AnsweredTasks(tuple(row for row, _ in wanted), tuple(found for _, found in wanted))
