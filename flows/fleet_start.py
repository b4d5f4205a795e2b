"""Makes a segment's actors ready: beside the start of other services, and again after a failure.

What lives and fits is kept: a driver that follows a killed one attaches to its actors. Consumes a way to connect to Ray;
produces the fleet's standing, which says what of the last commit's state the actors still hold.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from threading import Event
from typing import TYPE_CHECKING

from db.records import ChoiceRow
from yatt_core.cluster.devices import inventory
from yatt_core.controllers.fleet import FleetStanding
from yatt_core.data.inputs import INPUTS, MANIFEST
from yatt_core.errors import DataError, FencedError, InfrastructureError
from yatt_core.planning.cluster import cluster_of, read_cards
from yatt_core.planning.room import check_room
from yatt_core.receipts import InputsReceipt
from yatt_core.spec.judges import is_trained

if TYPE_CHECKING:
    from flows.segment import Segment

log = logging.getLogger("yatt_core.flow")
END_SECONDS = 10.0
"""How long a start under way may take to notice that the segment ends."""
ACTOR_LOST, QUARANTINED, CONTROLLERS = "actor_lost", "quarantined", "controllers"


class FleetStart:
    """Starts, repairs and ends the fleet of one segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._connect: Callable[[], None] = lambda: None
        self._starting: Future[FleetStanding] | None = None
        self._ending = Event()
        self._inputs: InputsReceipt | None = None
        self._controllers: Mapping[str, int] = {}
        self.environment: Mapping[str, str] = {}
        self.devices = 0

    @property
    def inputs(self) -> InputsReceipt:
        """The run's inputs, once the fleet has started."""
        if self._inputs is None:
            raise InfrastructureError("the fleet has not started")
        return self._inputs

    def begin(self, connect: Callable[[], None]) -> None:
        """Connects to Ray and starts the fleet in a thread, beside what else has to come up."""
        self._connect = connect
        executor = ThreadPoolExecutor(1, "start")
        self._starting = executor.submit(self._start)
        executor.shutdown(wait=False)

    def ready(self) -> FleetStanding:
        """Waits for the fleet that is starting; without one, keeps what lives and makes what is missing."""
        if self._starting is None:
            return self._start()
        try:
            return self._starting.result()
        finally:
            self._starting = None

    def end(self) -> None:
        """Ends the actors, also those that a start under way still makes: losing the first ones ends its waiting.

        A driver that was replaced leaves them alone: its successor has attached to them.
        """
        self._ending.set()
        try:
            self._segment.check()
        except FencedError:
            return
        self._segment.fleet.stop()
        if self._starting is not None:
            wait([self._starting], END_SECONDS)
            self._segment.fleet.stop()

    def _start(self) -> FleetStanding:
        """Connects to Ray, which may be a new one since the last time, and makes the fleet ready."""
        self._connect()
        self._give_up_at_the_end()
        return self.make_ready()

    def _give_up_at_the_end(self) -> None:
        if self._ending.is_set():
            raise InfrastructureError("the segment ends")

    def make_ready(self) -> FleetStanding:
        """Keeps, makes and loads the actors; Ray must be connected."""
        segment = self._segment
        segment.check()
        segment.observer.stage("starting controllers, engines and trainer")
        self.book_losses()
        fleet = segment.fleet
        fleet.avoid_nodes = self._quarantined()
        fleet.resident = self._account()
        self._give_up_at_the_end()
        fleet.start()
        self.book_losses()
        self._book_controllers()
        segment.observer.stage(f"making the run's inputs{', with its judge' if self._trains_a_judge else ''}")
        self._inputs = fleet.materialise()
        self._check_inputs(self._inputs)
        segment.observer.stage("loading engines and trainer")
        standing = fleet.load(self._inputs)
        self.environment = fleet.environment()
        segment.snapshots.attach(standing.snapshot_in_flight)
        return standing

    @property
    def _trains_a_judge(self) -> bool:
        return any(is_trained(part) for part in self._segment.spec.rewards.judges)

    def _account(self) -> bool:
        """Looks, before it is used, whether the devices have memory for the run; returns whether for all of its roles at once.

        Raises `ConfigurationError` where they have not even for one after the other.
        """
        devices, segment = inventory(), self._segment
        self.devices = len(devices)
        cluster = cluster_of(devices, read_cards())
        demand = None if cluster is None else check_room(segment.spec, cluster)
        if demand is None:
            segment.observer.warned(
                "the devices' memory, or the model's, is not known: nobody looked whether it suffices"
            )
            return True
        if not demand.resident:
            segment.observer.stage("engines and judges sleep while others work: there is no memory for all at once")
        return demand.resident

    def _check_inputs(self, inputs: InputsReceipt) -> None:
        """Writes down, once a run, what it starts from. Raises `DataError` where the files are no longer that."""
        segment = self._segment
        row = ChoiceRow(0, 0, INPUTS, {"manifest_sha256": inputs.manifest_sha256})
        recorded = segment.ledger.records.choice(segment.fence, row).body["manifest_sha256"]
        if recorded != inputs.manifest_sha256:
            raise DataError(
                f"{INPUTS}/{MANIFEST}: sha256 is {inputs.manifest_sha256}, run {segment.run} began with {recorded}; put the "
                "folder back as it was, or begin a new run with the other inputs"
            )

    def _book_controllers(self) -> None:
        """Writes down how many controllers there are where their number follows the nodes, whenever it changes."""
        by_node = self._segment.fleet.controllers_by_node()
        if by_node == self._controllers:
            return
        self._controllers = by_node
        fence, count = self._segment.fence, sum(by_node.values())
        body = {"count": count, "nodes": dict(by_node)}
        self._segment.ledger.events.append(fence.run, CONTROLLERS, body, fence)
        self._segment.observer.stage(f"{count} controllers on {len(by_node)} nodes")

    # -- quarantine ---------------------------------------------------------------------------------------------------

    def book_losses(self) -> None:
        """Writes down which actors were lost, and where."""
        fleet, fence = self._segment.fleet, self._segment.fence
        for failure in fleet.failures:
            self._segment.ledger.events.append(fence.run, ACTOR_LOST, asdict(failure), fence)
        fleet.failures.clear()

    def _quarantined(self) -> frozenset[str]:
        """Names of the nodes on which too many actors were lost of late."""
        segment, recovery = self._segment, self._segment.spec.recovery
        since = segment.clock.time_ms() - 1000 * recovery.quarantine_seconds
        losses = [link for link in segment.ledger.events.of_kind(segment.run, ACTOR_LOST) if link.at > since]
        lost = Counter(str(link.body["node"]) for link in losses)
        bad = frozenset(node for node, count in lost.items() if node and count >= recovery.quarantine_after)
        if bad - segment.fleet.avoid_nodes:
            segment.ledger.events.append(segment.run, QUARANTINED, {"nodes": sorted(bad)}, segment.fence)
            segment.observer.warned(
                f"too many actors were lost on {', '.join(sorted(bad))}: used no more if there are others"
            )
        return bad
