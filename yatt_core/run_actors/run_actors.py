"""The driver's view of a run's actors: attaches to them or starts them, assigns work, collects receipts, ends them.

Consumes a spec, a term and a connected Ray cluster. Produces receipts, never payload: weights go from the
trainer to the engines without passing through this process (`weight_sync`). Every wait has a
deadline: a lost actor raises an `InfrastructureError` that names it, a missed deadline a `StuckError` that
names the stuck actors and their positions in the code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from yatt_core.actors.dispatcher import PlacementReport
from yatt_core.actors.leftovers import Leftovers
from yatt_core.actors.trainer import RankState
from yatt_core.actors.use_meter import ProcessUse
from yatt_core.cluster.background_calls import calling_ray
from yatt_core.cluster.metering import UNINTERRUPTED, BytesMeter, Interruptions, unwrap_ray_error
from yatt_core.cluster.object_store import SpillMeter, spilled_bytes
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.keys import WorkKey
from yatt_core.placement.actions import ROLLOUT as ROLLING
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import RuntimePolicy, Usage
from yatt_core.protocols.receipts import (
    BATCHES_BY_CHANCE,
    ActorSeat,
    BatchTask,
    CheckpointReceipt,
    EvaluateReceipt,
    InputsReceipt,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SampleTask,
    SftReceipt,
    ShardRef,
    ShardTask,
    SyncReceipt,
    UpdateReceipt,
)
from yatt_core.run_actors.actor_registry import DISPATCHER, ENDPOINT, TRAINER, ActorFailure, ActorRegistry
from yatt_core.run_actors.actors_state import ActorsState
from yatt_core.run_actors.blocked import FIRST_LOOK_SECONDS, LOOK_SECONDS, BlockedControllers
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.controller_layout import CONTROLLER
from yatt_core.run_actors.evaluation import evaluate
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.node_files import NodeFiles
from yatt_core.run_actors.process_use import UseReadings
from yatt_core.run_actors.rank_files import agreed, agreed_evaluation, tidy
from yatt_core.run_actors.sampling import sample
from yatt_core.run_actors.shard_assignment import evaluate_tasks
from yatt_core.run_actors.trainer_ranks import TrainerRanks
from yatt_core.run_actors.wave_collection import WaveCollection
from yatt_core.run_actors.weight_sync import WeightSync
from yatt_core.spec import RunSpec

__all__ = ["ActorFailure", "RunActors"]

log = logging.getLogger(__name__)
START_SECONDS = 180.0
ANSWER_SECONDS = 30.0
"""How long actors may take to find out whether something answers again."""


class RunActors:
    """Controllers, rollout engines and trainer ranks of one run under one term.

    deadline: seconds for each wait in the current phase.
    avoid_nodes: names (`cluster.nodes`) of nodes that get no actors as long as there are other nodes.
    resident: whether the devices have memory for engines, judges and trainer at once; if not, they take turns.
    secret_blocks: the values of the Prefect blocks that the spec names.
    failures: the actors that were lost; the reader clears the list.
    files: which nodes share the run's folder.
    """

    def __init__(
        self,
        spec: RunSpec,
        run_folder: Path,
        term: int,
        branch: int,
        meter: BytesMeter,
        interruptions: Interruptions = UNINTERRUPTED,
    ) -> None:
        self._folder = run_folder
        self._term = term
        self._branch = branch
        self._interruptions = interruptions
        self._registry = ActorRegistry(spec, run_folder, term, branch)
        seconds = spec.recovery.phase_deadline_seconds
        self._calls = ActorCalls(
            registry=self._registry, run_folder=run_folder, meter=meter, interruptions=interruptions, deadline=seconds
        )
        self._weights = WeightSync(self._calls, self._registry, term, spec.trainer)
        # For calls that may be queued behind the work of an earlier driver or the imports of a new process.
        self._start_seconds = max(START_SECONDS, seconds)
        self.files = NodeFiles(
            spec=spec, run_folder=run_folder, meter=meter, interruptions=interruptions, seconds=self._start_seconds
        )
        self._registry.examine = self.files.examine
        self._trainer = TrainerRanks(
            calls=self._calls,
            registry=self._registry,
            files=self.files,
            term=term,
            branch=branch,
            start_seconds=self._start_seconds,
        )
        self.failures: list[ActorFailure] = self._registry.failures
        self._blocked = BlockedControllers(self._calls)
        self._created: tuple[str, ...] = ()
        self._spilling = SpillMeter()
        self._use = UseReadings()
        self._worked = True
        """Whether instances may have done work that `usage` has not returned."""
        self._cut = False
        self.avoid_nodes: frozenset[str] = frozenset()
        self.resident = True
        self.secret_blocks: Mapping[str, str] = {}

    @property
    def deadline(self) -> float:
        """Seconds for each wait in the current phase."""
        return self._calls.deadline

    @deadline.setter
    def deadline(self, seconds: float) -> None:
        self._calls.deadline = seconds

    def when_extended(self, allow: Callable[[float], None]) -> None:
        """Has a function called with the seconds by which a wait goes on."""
        self._calls.extended = allow

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def start(self) -> tuple[str, ...]:
        """Keeps live actors that fit, creates the missing ones, and returns the names of the new ones.

        Waits only for ranks that are still busy with a call that an earlier driver made to all ranks.
        """
        self._use.drop()  # the connection may be another one than before
        try:
            self._created = self._registry.gather(self.avoid_nodes)
            self._blocked.heard(self._created)
            if self._end_blocked():
                self._created += self._registry.gather(self.avoid_nodes)
                self._blocked.heard(self._created)
            self._created += self._mend_ranks()
            self.spilled_bytes()
        except ray.exceptions.RayError as error:
            raise unwrap_ray_error(error, "Ray, to start the actors") from error
        return self._created

    def _end_blocked(self) -> bool:
        """Ends controllers that an earlier driver, which is suspended, keeps occupied; returns True if there were any."""
        unheard = self._blocked.unheard(self._members(CONTROLLER))
        handles = dict(zip(self._members(CONTROLLER), self._controllers, strict=True))
        pending = {handles[name].answers.remote(self._term, ""): name for name in unheard}
        timeout = FIRST_LOOK_SECONDS
        while pending:
            with self._interruptions.shielded():
                done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=timeout)
            self._blocked.heard([pending.pop(each) for each in done])
            if not self._blocked.look(pending.values()):
                break
            timeout = LOOK_SECONDS
        return any(name not in self._members(CONTROLLER) for name in unheard)

    def outgrown(self) -> bool:
        """Returns True if the set of controllers needs to change, so that the actors should be prepared again.

        Also returns True if this cannot be determined: preparing the actors then reveals the cause.
        """
        try:
            return self._registry.outgrown(self.avoid_nodes)
        except (ray.exceptions.RayError, InfrastructureError) as error:
            log.warning("cannot look up the nodes: %s", error)
            return True

    def controllers_by_node(self) -> Mapping[str, int]:
        """Returns the number of controllers on each node; empty if the run's number is fixed."""
        return self._registry.controllers_by_node()

    def _mend_ranks(self) -> tuple[str, ...]:
        """Recreates the existing ranks if one waits in vain for the others; returns the names of the new actors."""
        if self._trainer.names[0] in self._created:
            return ()
        return self._trainer.mend(self._folder, self._interruptions, self.avoid_nodes)

    def materialise(self, tell: Callable[[str], None] | None = None) -> InputsReceipt:
        """Writes the run's inputs unless they exist, through an actor that is not busy with a long task.

        tell: called every few seconds with how far it has come; None if nobody wants to know.
        """
        made = (self._folder / INPUTS / MANIFEST).exists()
        first = next(iter(self._members(CONTROLLER)), "")
        busy = not first or (made and first not in self._created)
        actor, name = (self._ranks[0], f"{TRAINER}-0") if busy else (self._controllers[0], first)
        asked = [actor.materialise.remote(self._term)]
        what = f"{name} to write the inputs"
        receipt: InputsReceipt = self._calls.get(
            references=asked, what=what, awaited=[name], seconds=self._start_seconds, tell=tell
        )[0]
        self.files.bring(receipt)
        return receipt

    def load(self, inputs: InputsReceipt) -> ActorsState:
        """Prepares every actor for work, whichever driver created it and whatever it has done; may be called again.

        Controllers may be busy with work of an earlier driver: they load afterwards and are not waited for. If the
        devices cannot hold everything, engines load once the trainer has left them.
        """
        loading = self._load_controllers(inputs)
        loading += [endpoint.load.remote(self._term, self.secret_blocks) for endpoint in self._registry.of(ENDPOINT)]
        ranks = [] if self.resident else self._load_ranks(inputs)
        if ranks:
            self._move_ranks("offload")
        for name, engine in zip(self._members(ROLLOUT), self._engines, strict=True):
            followers = self._registry.followers_of(name)
            more = (followers,) if followers else ()
            loading.append(engine.load.remote(self._term, inputs.model_path, self.resident, *more))
        versions = [engine.version.remote(self._term) for engine in self._engines]
        ranks = ranks or self._load_ranks(inputs)
        names = self._members(ROLLOUT, ENDPOINT, CONTROLLER)
        self._registry.loaded(self._calls.get(loading, "the actors to load", names, self._start_seconds))
        held = self._calls.get(versions, "the rollout engines' versions", self._members(ROLLOUT), self._start_seconds)
        in_flight = ranks[0].checkpoint_in_flight
        self._trainer.settle(ranks)
        return ActorsState(
            trainer_version=ranks[0].version,
            trainer_key=ranks[0].applied,
            engine_versions=tuple(held),
            checkpoint_in_flight=in_flight,
            created=self._created,
        )

    def seats(self) -> tuple[ActorSeat, ...]:
        """Returns where each actor is, and what it held when it had been loaded."""
        return self._registry.seats()

    def stop(self) -> None:
        """Ends all actors. If the Ray head is gone, its actors have ended already."""
        self._use.drop()
        self._registry.end_all()

    def answers(self, dependency: str) -> bool | None:
        """Returns whether what an `AwayError` names answers again; None if no actor can tell.

        Asks the controllers and the judges' endpoints, one of which has found it to be away. One that does not reply in time
        has no answer.
        """
        with calling_ray():  # a look runs beside the driver, which may disconnect
            found = self._answers(dependency)
        if any(found):
            return True
        return False if False in found else None

    def _answers(self, dependency: str) -> list[bool | None]:
        """Returns what actors that reply in time answer, and False if one does not; keeps no references."""
        asked = [*self._controllers, *self._registry.of(ENDPOINT)]
        if not asked:
            return []
        references = [actor.answers.remote(self._term, dependency) for actor in asked]
        done, late = ray.wait(references, num_returns=len(references), timeout=ANSWER_SECONDS)
        found: list[bool | None] = [False] * bool(late)
        for reference in done:
            with suppress(ray.exceptions.RayError):  # an actor that was lost has nothing to tell
                found.append(ray.get(reference))
        return found

    def had_room(self) -> None:
        """Notes that the cluster could hold the actors before: if it cannot now, nodes are missing, which may come back."""
        self._registry.had_room = True

    def check_room(self) -> None:
        """Raises as `start` does if the cluster has no room for the actors; starts nothing."""
        self._registry.check_room(self.avoid_nodes)

    def leave_devices(self) -> None:
        """Ends the actors that hold devices and gives these back; the others stay. The next `start` creates them again."""
        self._registry.leave_devices()

    def spilled_bytes(self) -> int:
        """Returns the bytes that the object store spilled on all nodes since the last call or the actors' start."""
        return self._spilling.growth(spilled_bytes())

    @property
    def batches_by_chance(self) -> bool:
        """Whether an engine or judge, once loaded, may answer differently in another batch."""
        return self._registry.any_is(BATCHES_BY_CHANCE)

    def rollout_capabilities(self) -> list[Mapping[str, bool]]:
        """Returns what each rollout engine, once loaded, can do."""
        return self._registry.capabilities(self._members(ROLLOUT))

    def environments(self) -> list[Mapping[str, str]]:
        """Returns the properties of each rank's environment on which the trainer's exact results depend."""
        return self._trainer.all("environment", seconds=self._start_seconds)

    def _load_controllers(self, inputs: InputsReceipt) -> list[Any]:
        """Passes the dispatcher to all actors and the engines to the dispatcher; returns the calls to wait for."""
        if not self._registry.of(DISPATCHER):
            return []  # nothing is sampled
        dispatcher = self._registry.of(DISPATCHER)[0]
        kept = [name for name in self._members(CONTROLLER) if name not in self._created]
        pool = [*self._engines, *self._registry.of(ENDPOINT)]
        # Drops what lost controllers waited for or held, before their successors request anything.
        loading = [dispatcher.retain.remote(kept), dispatcher.engage.remote(self._term, pool)]
        for name, controller in zip(self._members(CONTROLLER), self._controllers, strict=True):
            reference = controller.load.remote(self._term, inputs, dispatcher)
            loading += [] if name in kept else [reference]
        return loading

    def _load_ranks(self, inputs: InputsReceipt) -> list[RankState]:
        """Prepares the ranks as one group; recreates a broken group once."""
        standings, created = self._trainer.load(inputs, self.avoid_nodes)
        self._created += created
        return standings

    # -- phases -------------------------------------------------------------------------------------------------------

    def sft(self) -> SftReceipt:
        """Runs supervised training before the first iteration."""
        self.rest()
        receipt: SftReceipt = self._trainer.all("sft", self._term)[0]
        return receipt

    def place(self, roles: str, runtime_policy: RuntimePolicy) -> None:
        """Assigns the devices' roles at the start of an iteration, and sets the runtime policy for the rest of it.

        Engines that take up another role may wake at once, so the trainer leaves the devices first.
        """
        self._move_ranks("offload")
        self._ask_dispatcher("place", self._term, roles, runtime_policy, True)

    def keep_instances(self, instances: Sequence[int]) -> None:
        """Has the dispatcher keep these instances free of work, and no others, until the next iteration is placed."""
        self._ask_dispatcher("keep", self._term, tuple(instances))

    def begin_wave(self, wave: str, samples: int) -> None:
        """Announces the number of samples of a wave to be rolled out and judged."""
        self._ask_dispatcher("begin_wave", self._term, wave, samples)

    def placement_report(self) -> PlacementReport:
        """Returns the results of the iteration's placement so far."""
        report: PlacementReport = self._ask_dispatcher("report")
        return report

    def discard_usage(self) -> None:
        """Discards what `usage` would return; asks nobody if nothing has been begun since the last call."""
        if self._worked:
            self.usage()

    def usage(self) -> tuple[Usage, ...]:
        """Returns the work of all instances since the last call."""
        asked = [engine.usage.remote(self._term) for engine in self._engines]
        rows = self._calls.get(asked, "the rollout engines' usage", self._members(ROLLOUT))
        self._worked = self._cut  # what was cut may still be under way
        self._cut = False
        return tuple(row for of_one in rows for row in of_one)

    def ask_use(self) -> None:
        """Has the actors begin to answer what they use; the next `process_use` returns it."""
        self._use.ask(self._working(), self._term)

    def process_use(self) -> dict[str, ProcessUse]:
        """Returns what the actors use, by their names: how busy devices were since the last call, and memory."""
        return self._use.read(self._working(), self._term)

    def forget_use(self) -> None:
        """Has the actors begin anew with what they use and spend, as after `process_use`, without waiting for them."""
        self._use.forget(self._working(), self._term)

    def _working(self) -> dict[str, Any]:
        """Returns the actors that work on iterations, by name."""
        roles = (ROLLOUT, TRAINER, CONTROLLER, ENDPOINT)
        return {
            name: actor
            for role in roles
            for name, actor in zip(self._registry.names_of(role), self._registry.of(role), strict=True)
        }

    def begin_collecting(self, tasks: Sequence[ShardTask]) -> WaveCollection:
        """Distributes shards over the controllers, which begin at once; the receipts are asked for later."""
        self._worked = True
        self._move_ranks("offload")
        return WaveCollection(self._calls, tasks, self._blocked)

    def rest(self) -> None:
        """Puts engines and judges to sleep unless the devices have enough memory for them and the trainer together."""
        if not self.resident:
            resting = [engine.rest.remote(self._term) for engine in self._engines]
            self._calls.get(resting, "the rollout engines to rest", self._members(ROLLOUT))

    def _move_ranks(self, where: str) -> None:
        """Offloads the trainer (`offload`) or restores its tensors (`reload`) if the devices cannot hold everything.

        `reload` may be omitted: before any other call, the trainer reloads by itself.
        """
        if not self.resident:
            self._trainer.all(where, self._term)

    def cut(self) -> None:
        """Withdraws the controllers' waiting requests. Engines finish their work, but its shards are not collected."""
        self._cut = True
        self._ask_dispatcher("cut", self._term, self._members(CONTROLLER))

    def accumulate(self, task: BatchTask) -> None:
        """Has the trainer learn from the shards that are sealed, beside the engines; `prepare` waits for it."""
        self._trainer.accumulate(task)

    def sample(self, task: SampleTask) -> tuple[ShardRef, ...]:
        """Has the samplers draw an iteration's shards, but for those that are sealed; returns how all are named, in order.

        task: names the iteration; each sampler gets a share of its shards.
        """
        if not self.files.are_shared:
            raise ConfigurationError(
                "workload.sampled_by: rollout needs a folder of the run that all nodes share, but some have disks of their own; "
                "use trainer"
            )
        self._move_ranks("offload")
        sealed = sample(self._calls, task)
        self.rest()
        return sealed

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        """Computes old and reference log-probabilities where needed, and the advantages."""
        self._move_ranks("reload")
        return self._trainer.prepare(task)

    def prepared_is_whole(self, receipt: PrepareReceipt) -> bool:
        """Returns True if an earlier attempt's prepared files exist unchanged; the trainer's first rank reads them."""
        return bool(self._trainer.first("prepared_is_whole", receipt))

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies an iteration's optimizer steps on all ranks, which must agree on the result."""
        return agreed(task, self._trainer.learn(task, prepared))

    def evaluate_rows(self, run: str, iteration: int) -> RowsReceipt:
        """Has the trainer score the held-out rows with the weights after an iteration; all ranks must agree on the result."""
        task = RowsTask(WorkKey(run, self._branch, iteration, "evaluate"), self._term)
        return agreed_evaluation(self._trainer.all("evaluate", task))

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances the version without a step; the fingerprint contains `skipped`."""
        return agreed(task, self._trainer.all("skip", task))

    def sync(self, version: int) -> list[SyncReceipt]:
        """Transfers a version's weights to all rollout engines that lack them (`weight_sync`); returns their receipts."""
        return self._weights.sync(version)

    def check_weights(self, version: int, committed: str | None) -> None:
        """Compares the trainer's weights with their commit, and the engines' with the trainer's (see `WeightSync`)."""
        self._weights.check(version, committed)

    def evaluate(
        self,
        run: str,
        iteration: int,
        held_out: int,
        only: Collection[int] | None = None,
        allows: Callable[[int], bool] | None = None,
    ) -> EvaluateReceipt:
        """Has the held-out tasks answered, distributed over the controllers.

        only: indexes of the tasks to answer; None for all.
        allows: given how many tasks are answered, returns True if the rest may be left out; None if all are needed.
        """
        self._worked = True
        self._move_ranks("offload")
        everyone = ROLLING * len(self._engines)
        self._ask_dispatcher("place", self._term, everyone, Hold(), False)
        key = WorkKey(run, self._branch, iteration, "evaluate")
        tasks = evaluate_tasks(
            key=key, term=self._term, held_out=held_out, controllers=len(self._controllers), only=only
        )
        results = evaluate(self._calls, tasks, self._blocked, allows)
        if len(results) < (held_out if only is None else len(only)):
            self.cut()
        self.rest()
        rows = tuple(sorted(results))
        return EvaluateReceipt(key, tuple(results[row] for row in rows), rows, held_out)

    def copy_ahead(self, version: int) -> None:
        """Has the trainer begin to copy its tensors for the next checkpoint, beside calls that only read them."""
        self._trainer.copy_ahead(version)

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        """Has the trainer's tensors copied, unless they were copied ahead, and published, both in the background.

        audit_head: head of the audit chain, recorded in the manifest.
        """
        self._trainer.begin_checkpoint(run, audit_head)

    def checkpoint_result(self, wait_seconds: float = 0.0) -> CheckpointReceipt | None:
        """Returns the receipt of the pending checkpoint, whichever driver started it; None until it is durable."""
        return self._trainer.checkpoint_result(wait_seconds)

    def restore(self, folder: str, manifest_sha256: str, version: int, renew: bool = False) -> None:
        """Loads a checkpoint into all ranks (`restoring`). Raises `DataError` if its files do not match the digest.

        renew: whether nodes with disks of their own replace damaged files too, not only missing ones.
        """
        self._trainer.restore(folder, manifest_sha256, version, renew)

    def tidy(self, leftovers: Leftovers) -> None:
        """Has files deleted that are on other disks than the driver's."""
        if not self.files.are_shared:
            tidy(
                calls=self._calls,
                controllers=self._controllers,
                ranks=self._ranks,
                names=self._members(TRAINER),
                term=self._term,
                leftovers=leftovers,
            )

    # -- internals ----------------------------------------------------------------------------------------------------

    @property
    def _controllers(self) -> list[Any]:
        return self._registry.of(CONTROLLER)

    @property
    def _engines(self) -> list[Any]:
        return self._registry.of(ROLLOUT)

    @property
    def _ranks(self) -> list[Any]:
        return self._trainer.actors

    def _members(self, *roles: str) -> list[str]:
        return [name for name in self._registry.names if name.rpartition("-")[0] in roles]

    def _ask_dispatcher(self, method: str, *arguments: Any) -> Any:
        reference = getattr(self._registry.of(DISPATCHER)[0], method).remote(*arguments)
        return self._calls.get([reference], f"the dispatcher to {method}", [f"{DISPATCHER}-0"])[0]
