"""Starts a session's actors in parallel with other services, and restarts lost ones after a failure.

Consumes a function that connects to Ray. Produces the actors' state, which shows how much of the last commit's state
they still hold. Live actors that fit the spec are kept, so a driver that follows a killed one attaches to its
actors.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from threading import Event

from db.core.errors import LedgerUnavailable
from db.write.records import ChoiceRow
from flows.delivery.datasets import dataset_entries
from flows.driver.attachment import attached
from flows.driver.checkpoints import CheckpointKeeper
from flows.driver.context import RunContext
from flows.driver.transport_record import record_transport
from flows.placement.disks import DISKS, disks_of, last_disks
from flows.placement.seats import SEATS, identity_of, last_seats
from flows.prefect_io.secret_blocks import blocks_of
from flows.run.home import STARTS
from yatt_core.cluster.devices import Device, inventory, measured_gpus
from yatt_core.cluster.nodes import A_NODE
from yatt_core.counting import many
from yatt_core.engines.environment import facts_of_ranks, mixed_facts, rollout_facts
from yatt_core.errors import IS_AWAY, AwayError, ConfigurationError, DataError, FencedError, InfrastructureError
from yatt_core.input_building.kept_inputs import KeptInputs
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.planning.cluster import cluster_of, read_cards, without_card
from yatt_core.planning.device_kinds import kinds_of
from yatt_core.planning.memory.device_memory import check_device_memory, lag_obstacle
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.run_actors.actors_state import ActorsState
from yatt_core.run_actors.node_logs import NodeLogs
from yatt_core.run_actors.run_actors import RunActors

log = logging.getLogger("yatt_core.flow")
END_SECONDS = 10.0
"""Maximum time for a start in progress to notice that the session is ending."""
SETTLE_SECONDS = 300.0
"""Maximum time for a start in progress before its actors are ended to give their devices back."""
ACTOR_LOST = "actor_lost"
QUARANTINED = "quarantined"
CONTROLLERS = "controllers"


class ActorsStart:
    """Starts, repairs and ends the actors of one session.

    check: raises as `DriverThreads.check` does if the driver may not act.
    charge: receives the number of devices of each kind that the actors got.
    """

    def __init__(
        self, check: Callable[[], None], charge: Callable[[Mapping[str, int]], None] = lambda kinds: None
    ) -> None:
        self._check = check
        self._charge = charge
        self._inventory: tuple[Device, ...] = ()
        self._connect: Callable[[], None] | None = None
        self._starting: Future[ActorsState] | None = None
        self._ending = Event()
        self._inputs: InputsReceipt | None = None
        self._controllers: Mapping[str, int] = {}
        self._logs: NodeLogs | None = None
        self.environment: Mapping[str, str] = {}
        self._mixed: Mapping[str, str] = {}
        self.is_exact = True
        """Whether the run repeats its bits, as far as is known until its actors are loaded."""
        self.devices = 0
        self.created: tuple[str, ...] = ()
        """The names of the actors that the newest start has created."""

    def enter_branch(self, context: RunContext, actors: RunActors, checkpoints: CheckpointKeeper) -> None:
        """Switches to the actors and checkpoints of another branch."""
        self._context = context
        self._actors = actors
        self._checkpoints = checkpoints

    @property
    def inputs(self) -> InputsReceipt:
        """The run's inputs. Raises `InfrastructureError` until the actors have started."""
        if self._inputs is None:
            raise InfrastructureError("the actors have not started")
        return self._inputs

    def begin(self, connect: Callable[[], None]) -> None:
        """Connects to Ray and starts the actors in a background thread; later calls do nothing.

        A start that fails is repaired by `ready`.
        """
        if self._connect is not None:
            return
        self._connect = connect
        executor = ThreadPoolExecutor(1, "start")
        self._starting = executor.submit(self._start)
        executor.shutdown(wait=False)

    def ready(self) -> ActorsState:
        """Waits for the start in progress; if there is none, starts the missing actors.

        A wait that is interrupted leaves the start in progress for the next call: two at once would both connect to Ray.
        """
        if self._starting is None:
            return self._start()
        try:
            return self._starting.result()
        finally:
            if self._starting.done():
                self._starting = None

    def settle(self) -> None:
        """Waits for the start in progress, whatever becomes of it; the next `ready` starts what is missing."""
        starting = self._starting
        self._starting = None
        if starting is not None:
            wait([starting], SETTLE_SECONDS)

    def end(self) -> None:
        """Ends the actors, including those of a start in progress, which fails as soon as its first actors are gone.

        A driver that was replaced does not end them, since its successor uses them.
        """
        self._ending.set()
        try:
            self._check()
        except LedgerUnavailable as error:
            log.warning("whether this driver was replaced is left to the actors: %s", error)
        except FencedError:
            if self._logs is not None:
                self._logs.end(last=False)
            return
        self._actors.stop()
        if self._logs is not None:
            self._logs.end()
        if self._starting is not None:
            wait([self._starting], END_SECONDS)
            self._actors.stop()

    def _start(self) -> ActorsState:
        """Connects to Ray, which may have been restarted since the last time, and makes the actors ready."""
        if self._connect is not None:
            self._connect()
        self.give_up_at_the_end()
        return self.make_ready()

    def give_up_at_the_end(self) -> None:
        """Raises `InfrastructureError` once the session is ending, and as `DriverThreads.check` does."""
        self._check()
        if self._ending.is_set():
            raise InfrastructureError("the session is ending")

    def make_ready(self) -> ActorsState:
        """Keeps, creates and loads the actors; Ray must be connected."""
        context = self._context
        self._check()
        own = "samplers and the trainer" if context.spec.has.samplers else "the trainer"
        roles = "engines and trainer" if context.spec.has.controllers else own
        context.observer.stage(f"starting {f'controllers, {roles}' if context.spec.has.controllers else roles}")
        self.book_losses()
        actors = self._actors
        actors.avoid_nodes = self._quarantined()
        if self._had_room():
            actors.had_room()
        self._use_what_is_needed()
        actors.resident = self._account()
        actors.secret_blocks = blocks_of(context.spec)
        self.give_up_at_the_end()
        actors.start()
        self.book_losses()
        self._book_controllers()
        self._book_disks()
        record_transport(self._context)
        context.observer.stage("preparing the run's inputs")
        self._inputs = self._settled_inputs()
        self._check_inputs(self._inputs)
        if self._inputs.over_long:
            context.observer.warned(
                f"{many(self._inputs.over_long, 'prompt', 'are longer', 'is longer')} than data.max_prompt_tokens "
                f"(data.over_long: {context.spec.data.over_long})"
            )
        for line in self._inputs.left_out:
            context.observer.warned(line)
        context.observer.stage(f"loading {roles}")
        standing = actors.load(self._inputs)
        self.created = standing.created
        self._charge(self._book_seats())
        self._note_environment(actors.environments())
        self._note_rollout_bits()
        self._note_exactness()
        self._checkpoints.attach(standing.checkpoint_in_flight)
        return standing

    def _note_exactness(self) -> None:
        """Finds out whether the run can be exact on these devices; warns of a run that was to be where that is possible."""
        spec = self._context.spec
        by_chance = spec.is_exact and self._actors.batches_by_chance
        if by_chance and self.is_exact:
            self._context.observer.warned(
                "exact: on these devices engines may answer differently in another batch, so the run is not exact: responses "
                "that are not durable when something dies are drawn again, and may differ"
            )
        self.is_exact = spec.is_exact and not by_chance

    def _note_environment(self, found: Sequence[Mapping[str, str]]) -> None:
        """Keeps what a replay depends on; warns of ranks that compute differently, whenever they do so in another way."""
        self.environment = facts_of_ranks(found)
        mixed = mixed_facts(found)
        if mixed and mixed != self._mixed:
            listed = "; ".join(f"{name}: {values}" for name, values in mixed.items())
            self._context.observer.warned(
                f"the trainer's ranks do not all compute in the same way: {listed}. Their updates can be repeated to the last "
                "bit only if each rank is on such a node again; use nodes of one kind to avoid this"
            )
        self._mixed = mixed

    def _note_rollout_bits(self) -> None:
        """Keeps what makes responses repeat their bits, as the engines that are loaded declare it."""
        facts = rollout_facts(self._context.spec, self._actors.rollout_capabilities())
        self.environment = {**self.environment, **facts}

    def place_is_there(self, dependency: str) -> bool | None:
        """Returns whether the cluster has room for the actors again; None if something else is away."""
        if dependency != A_NODE:
            return None
        try:
            self._account()
            self._use_what_is_needed()
            self._actors.check_room()
        except AwayError:
            return False
        return True

    def _had_room(self) -> bool:
        """Returns True if a cluster that may grow again has held the run's actors before."""
        if self._inputs is not None:
            return True
        return attached() and last_seats(self._context.ledger, self._context.run) is not None

    def _account(self) -> bool:
        """Checks the devices' memory before it is used; returns True if it suffices for all roles at once.

        Raises `ConfigurationError` if it does not suffice even for one role at a time, or if the nodes cannot hold the
        trainer's ranks; `AwayError` if they could before.
        """
        context = self._context
        devices = inventory()
        cards = read_cards()
        self.devices = len(devices)
        self._inventory = devices
        if unknown := without_card(devices, cards):
            devices = measured_gpus(devices, unknown)
        cluster = cluster_of(devices, cards)
        try:
            demand = None if cluster is None else check_device_memory(context.spec, cluster)
        except ConfigurationError as error:
            if not self._had_room():
                raise
            raise AwayError(f"{A_NODE}{IS_AWAY}it is lost. {error}") from error
        if demand is None:
            # A workload has a model of its own, whose size is never known: a warning at each start would say nothing.
            if context.spec.has.language_model:
                context.observer.warned(
                    "the memory of the devices, or the size of the model, is not known: the memory check was skipped"
                )
            return True
        if cluster is not None and (lag := lag_obstacle(context.spec, demand, cluster)):
            raise ConfigurationError(lag)
        if not demand.resident:
            context.observer.stage("engines and judges take turns with the trainer: there is no memory for all at once")
        return demand.resident

    def _settled_inputs(self) -> InputsReceipt:
        """Has the inputs built or verified by an actor. The first session of a run may copy those that the home keeps.

        Later ones leave that to the durable tier, which may have the run's own. So do runs on machines that share no folder.
        """
        context = self._context
        kept = KeptInputs(context.home.folder / STARTS / INPUTS)
        is_first = context.fence.term == 1 and not attached()
        key = kept.offer(context.spec, context.folder) if is_first else None
        inputs = self._actors.materialise(context.observer.stage)
        if key is not None:
            kept.keep(context.spec, context.folder, key)
        return inputs

    def _check_inputs(self, inputs: InputsReceipt) -> None:
        """Records the digest of the inputs, once, and tells the tracker. Raises `DataError` if they have changed since."""
        context = self._context
        row = ChoiceRow(0, 0, INPUTS, {"manifest_sha256": inputs.manifest_sha256})
        recorded = context.ledger.records.choice(context.fence, row).body["manifest_sha256"]
        if recorded != inputs.manifest_sha256:
            raise DataError(
                f"{INPUTS}/{MANIFEST}: sha256 is {inputs.manifest_sha256}, but run {context.run} began with "
                f"{recorded}; restore the folder, or start a new run with the changed inputs"
            )
        told = dataset_entries(
            run=context.run,
            branch=context.branch,
            spec=context.spec,
            folder=context.folder,
            at_ms=context.clock.time_ms(),
        )
        context.ledger.outbox.enqueue(context.fence, told)

    def _book_controllers(self) -> None:
        """Records the number of controllers whenever it changes, if it depends on the number of nodes."""
        by_node = self._actors.controllers_by_node()
        if by_node == self._controllers:
            return
        self._controllers = by_node
        fence = self._context.fence
        count = sum(by_node.values())
        body = {"count": count, "nodes": dict(by_node)}
        self._context.ledger.events.append(fence.run, CONTROLLERS, body, fence)
        self._context.observer.stage(f"{many(count, 'controller')} on {many(len(by_node), 'node')}")

    def _book_seats(self) -> Mapping[str, int]:
        """Records where the actors are whenever that has changed since the run's last record.

        Returns the number of devices of each kind that they use.
        """
        context = self._context
        seats = self._actors.seats()
        recorded = last_seats(context.ledger, context.run)
        if recorded is None or [identity_of(seat) for seat in recorded] != [identity_of(seat) for seat in seats]:
            context.ledger.events.append(context.run, SEATS, {"seats": [asdict(seat) for seat in seats]}, context.fence)
        return kinds_of(self._inventory, seats, context.spec.devices, read_cards())

    def _book_disks(self) -> None:
        """Records which nodes have a folder of their own for the run, whenever that changes."""
        by_node = self._actors.files.by_node()
        context = self._context
        sources = self._actors.files.log_sources()
        if self._logs is None and sources:
            self._logs = NodeLogs(context.folder)
        if self._logs is not None:
            self._logs.follow(sources)
        if by_node == last_disks(context.ledger, context.run):
            return
        context.ledger.events.append(context.run, DISKS, {"nodes": dict(by_node)}, context.fence)
        for disk in disks_of(by_node):
            context.observer.stage(f"a disk with the run's folder: {', '.join(disk.nodes)}")

    # -- quarantine ---------------------------------------------------------------------------------------------------

    def book_losses(self) -> None:
        """Records which actors were lost, and on which nodes."""
        actors = self._actors
        fence = self._context.fence
        for failure in actors.failures:
            self._context.ledger.events.append(fence.run, ACTOR_LOST, asdict(failure), fence)
        actors.failures.clear()

    def _use_what_is_needed(self) -> None:
        """Lifts the quarantine of nodes without which the run has no place, such as one that was lost with all its actors."""
        actors = self._actors
        if not actors.avoid_nodes:
            return
        try:
            actors.check_room()
        except AwayError:
            log.warning("%s cannot be avoided: there is no place without", ", ".join(sorted(actors.avoid_nodes)))
            actors.avoid_nodes = frozenset()

    def _quarantined(self) -> frozenset[str]:
        """Returns the names of the nodes on which too many actors were lost recently, without anything new in between."""
        context = self._context
        recovery = self._context.spec.recovery
        recently = context.clock.time_ms() - 1000 * recovery.quarantine_seconds
        since = max(recently, context.ledger.phases.progressed_at(context.run))
        losses = [link for link in context.ledger.events.of_kind(context.run, ACTOR_LOST) if link.at > since]
        lost = Counter(str(link.body["node"]) for link in losses)
        bad = frozenset(node for node, count in lost.items() if node and count >= recovery.quarantine_after)
        if bad - self._actors.avoid_nodes:
            context.ledger.events.append(context.run, QUARANTINED, {"nodes": sorted(bad)}, context.fence)
            context.observer.warned(
                f"too many actors were lost on {', '.join(sorted(bad))}: avoiding them if there are other nodes"
            )
        return bad
