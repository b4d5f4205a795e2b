"""The run's actors by name: finds live actors that fit, creates the missing ones, ends all others.

Consumes a spec, a term and a connected Ray cluster. An actor is registered as `ROLE-INDEX.GENERATION`; the
generation identifies code, spec and branch, so that a driver only ever attaches to actors that behave exactly
like those that it would create.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from yatt_core.actors.concurrent_rollout import WORK, ConcurrentRolloutActor
from yatt_core.actors.controller import Controller
from yatt_core.actors.dispatcher import CONCURRENT_CALLS, Dispatcher
from yatt_core.actors.endpoint import EndpointActor
from yatt_core.actors.follower import SERVING, SERVING_THREADS, FollowerActor
from yatt_core.actors.rollout import RolloutActor
from yatt_core.actors.sampler import SamplerActor
from yatt_core.actors.trainer import TrainerActor
from yatt_core.actors.virtual import ContinuousActor
from yatt_core.cluster.control_store import RayControlStore
from yatt_core.cluster.driver_signs import announce, forget_drivers, require_newest
from yatt_core.cluster.gcs import node_of_actor
from yatt_core.cluster.nodes import avoided_nodes, elsewhere, node_names, on_node
from yatt_core.cluster.reservation import Seat, check_room, gpus_of, release, reserve
from yatt_core.cluster.seating import RankLayout, layout_of, pool_layout
from yatt_core.code_revision import code_revision
from yatt_core.dispatch.pool import work_threads
from yatt_core.errors import FencedError, InfrastructureError
from yatt_core.protocols.receipts import ActorIdentity, ActorSeat, Holdings
from yatt_core.run_actors.controller_layout import CONTROLLER, lay_out_controllers
from yatt_core.run_actors.instances import FOLLOWER, ROLLOUT, InstanceSeats
from yatt_core.spec import RunSpec
from yatt_core.spec.roles import endpoint_judges

log = logging.getLogger(__name__)
NAME_SECONDS = 30.0
"""How long the name of an ended actor may remain taken."""
DISPATCHER = "dispatcher"
ENDPOINT = "endpoint"
TRAINER = "trainer"
CONTINUOUS = "continuous"
CONCURRENT_ROLLOUT = "concurrent"
"""Classes of the rollout actors whose engines use continuous batching: virtual and real."""
SAMPLER = "sampler"
"""The class of the rollout actors of a workload of one's own."""
CLASSES: dict[str, type] = {
    DISPATCHER: Dispatcher,
    CONTROLLER: Controller,
    ROLLOUT: RolloutActor,
    CONTINUOUS: ContinuousActor,
    CONCURRENT_ROLLOUT: ConcurrentRolloutActor,
    SAMPLER: SamplerActor,
    FOLLOWER: FollowerActor,
    ENDPOINT: EndpointActor,
    TRAINER: TrainerActor,
}


CONCURRENT = {DISPATCHER: CONCURRENT_CALLS, CONTINUOUS: CONCURRENT_CALLS}
"""Maximum number of concurrent calls by role. For an endpoint, its reward part sets it; other actors take one call."""


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """An actor that was lost.

    node: the name of its node; empty if unknown.
    """

    actor: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegisteredActor:
    """An actor in the registry.

    name: `ROLE-INDEX`.
    node: Ray's id of its node.
    """

    name: str
    handle: Any
    node: str = ""

    @property
    def actor_id(self) -> str:
        """Ray's id of this incarnation."""
        return str(self.handle._actor_id.hex())


def generation_of(revision: str, spec_json: str, branch: int) -> str:
    """Returns a digest that distinguishes actors with different code, specs or branches."""
    return hashlib.sha256(f"{revision}\n{spec_json}\n{branch}".encode()).hexdigest()[:8]


class ActorRegistry:
    """The actors of one run under one term.

    failures: the actors that were lost.
    store: what driver and actors tell each other.
    had_room: whether the cluster could hold the actors before, so that nodes are missing if it cannot.
    examine: called with the live nodes' names by id, and the ids of those to avoid, before actors are created there.

    The parameter `avoid_nodes` of some methods contains names of nodes that get no actors as long as there are
    other nodes.
    """

    def __init__(self, spec: RunSpec, run_folder: Path, term: int, branch: int) -> None:
        self._spec_json = spec.model_dump_json()
        self._folder = run_folder
        self._term = term
        self.store = RayControlStore()
        self._generation = generation_of(code_revision(), self._spec_json, branch)
        # A run without responses has no controllers; one that samples nothing has the trainer's ranks only.
        self._controllers = spec.controllers if spec.has.controllers else None
        self._rollout_class = _rollout_class(spec)
        counts = {
            DISPATCHER: int(spec.has.controllers),
            CONTROLLER: 0,
            ROLLOUT: spec.engine_instances,
            FOLLOWER: 0,
            ENDPOINT: len(endpoint_judges(spec)) if spec.has.judges else 0,
            TRAINER: spec.trainer.engine.ranks,
        }
        # Ray's method groups with threads of their own, and the number of threads.
        self._groups = {CONCURRENT_ROLLOUT: {WORK: work_threads(spec)}, FOLLOWER: {SERVING: SERVING_THREADS}}
        self._endpoint_calls = [part.max_concurrent_requests for part in endpoint_judges(spec)]
        self._seated = () if spec.virtual else (ROLLOUT, FOLLOWER, TRAINER)
        self._seats: tuple[Seat, ...] = ()
        self._instances = InstanceSeats((), RankLayout(0, shares=True))
        self._layout = layout_of(spec.trainer.engine)
        self._pool = pool_layout(spec)
        self._devices = 0 if spec.virtual else spec.devices
        self._before_engines = spec.devices_before_engines
        # The names of controllers and followers are as of the last `gather`, which looks up the nodes.
        self._wanted = {role: [f"{role}-{i}" for i in range(count)] for role, count in counts.items()}
        self._members: dict[str, RegisteredActor] = {}
        self._holdings: dict[str, Holdings] = {}
        self._capabilities: dict[str, Mapping[str, bool]] = {}
        self._ended: set[str] = set()
        self._cluster = ""
        self._living: dict[str, str] = {}
        self._node_names: dict[str, str] = {}
        self.failures: list[ActorFailure] = []
        self.had_room = False
        self.examine: Callable[[Mapping[str, str], Collection[str]], None] = lambda _names, _avoided: None

    # -- current actors -----------------------------------------------------------------------------------------------

    def of(self, role: str) -> list[Any]:
        """Returns the handles of a role's actors, in order; empty before the first `gather`."""
        return [self._members[name].handle for name in self._wanted[role] if name in self._members]

    def names_of(self, role: str) -> list[str]:
        """Returns the names of a role's actors, in order."""
        return [name for name in self._wanted[role] if name in self._members]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all actors as used in messages, grouped by role and in order."""
        return tuple(name for names in self._wanted.values() for name in names if name in self._members)

    def outgrown(self, avoid_nodes: frozenset[str]) -> bool:
        """Returns True if the set of controllers needs to change: one was lost, or nodes have joined or left."""
        if self._controllers is None:
            return False
        there = {name: self._members[name].node for name in self._wanted[CONTROLLER] if name in self._members}
        nodes = node_names() if self._controllers.per == "node" else {}
        usable = nodes.keys() - avoided_nodes(nodes, avoid_nodes)
        return lay_out_controllers(self._controllers, usable, there).keys() != there.keys()

    def controllers_by_node(self) -> dict[str, int]:
        """Returns the number of controllers on each node by node name; empty if the run's number is fixed."""
        if self._controllers is None or self._controllers.per == "run":
            return {}
        nodes = [self._members[name].node for name in self._wanted[CONTROLLER] if name in self._members]
        return dict(sorted(Counter(self._node_names[node] for node in nodes).items()))

    def loaded(self, answers: Iterable[object]) -> None:
        """Keeps what loaded actors hold and can do; answers other than their identities are ignored."""
        identities = [each for each in answers if isinstance(each, ActorIdentity)]
        self._holdings |= {each.name: each.holds for each in identities}
        self._capabilities |= {each.name: each.capabilities for each in identities}

    def capable(self, names: Iterable[str], capability: str) -> bool:
        """Returns True if all of these actors, which are loaded, have a capability."""
        return all(self._capabilities[name].get(capability, False) for name in names)

    def capabilities(self, names: Iterable[str]) -> list[Mapping[str, bool]]:
        """Returns what each of these actors, which are loaded, can do."""
        return [self._capabilities[name] for name in names]

    def any_is(self, capability: str) -> bool:
        """Returns True if any of the loaded actors has a capability."""
        return any(self._capabilities.get(name, {}).get(capability, False) for name in self.names)

    def seats(self) -> tuple[ActorSeat, ...]:
        """Returns where each actor is, grouped by role and in order.

        Raises `InfrastructureError` if Ray's control store does not answer.
        """
        return tuple(self._seat_of(name) for name in self.names)

    def _seat_of(self, name: str) -> ActorSeat:
        member = self._members[name]
        holds = self._holdings.get(name, Holdings())
        if not member.node:
            member = self._members[name] = replace(member, node=node_of_actor(member.actor_id))
        devices = [f"gpu{gpu}" for gpu in holds.gpus]
        if not devices and _role(name) in self._seated:
            # An actor that was kept while the nodes changed may be on another of its node's devices.
            devices = [f"{seat.kind}{seat.bundle}" for seat in self._seats_of(name) if seat.node == member.node]
        node = self._node_names.get(member.node, "")
        return ActorSeat(
            actor=name,
            id=member.actor_id,
            node=node,
            device=", ".join(devices),
            host_bytes=holds.host_bytes,
            gpu_bytes=holds.gpu_bytes,
        )

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def gather(self, avoid_nodes: frozenset[str]) -> tuple[str, ...]:
        """Keeps live actors that fit, creates missing ones without waiting for them, and returns the new names.

        The trainer's ranks are kept or created as a whole group, and so are the actors of an instance over several nodes.
        Raises `InfrastructureError` if no node is
        left or the name of an ended actor remains taken, and `FencedError` in a driver that was replaced.
        """
        announce(self.store, self._term)
        self._look_around()
        avoided = avoided_nodes(self._living, avoid_nodes)
        self.examine(self._living, avoided)
        if self._devices:
            self._seats = reserve(
                wanted=self._devices, avoided=avoided, layout=self._layout, pool=self._pool, had_room=self.had_room
            )
            first = min(self._before_engines, len(self._seats) - 1)
            self._instances = InstanceSeats([seat.node for seat in self._seats], self._pool, first)
            self._wanted[FOLLOWER] = self._instances.followers
        found = self._find(avoided)
        self._book_lost(found)
        self._end(found.pop(name) for name in self._instances.broken({n: m.node for n, m in found.items()}))
        ranks = self._wanted[TRAINER]
        if not all(name in found for name in ranks):
            self._end(found.pop(name) for name in ranks if name in found)
        places = self._staff(found, avoided)
        missing = [name for names in self._wanted.values() for name in names if name not in found]
        # Visible from here on, so that `end_all` in another thread also ends actors that are just being created.
        self._members = found
        for name in missing:
            found[name] = self._create(name, avoided, places.get(name, ""))
        self._members = found
        return tuple(missing)

    def _staff(self, found: dict[str, RegisteredActor], avoided: frozenset[str]) -> dict[str, str]:
        """Determines the wanted controllers, ends all other controllers, and returns each wanted controller's node."""
        living = {name: member.node for name, member in found.items() if _role(name) == CONTROLLER}
        if self._controllers is None:
            return {}
        places = lay_out_controllers(self._controllers, self._living.keys() - avoided, living)
        self._wanted[CONTROLLER] = list(places)
        self._end([found.pop(name) for name in living if name not in places])
        return places

    def recreate(self, role: str, avoid_nodes: frozenset[str]) -> tuple[str, ...]:
        """Replaces all actors of a role."""
        names = self._wanted[role]
        avoided = avoided_nodes(self._living, avoid_nodes)
        self._end([self._members[name] for name in names])
        for name in names:
            self._members[name] = self._create(name, avoided)
        return tuple(names)

    def end_all(self) -> None:
        """Ends all actors and releases the devices. If the Ray head is gone, its actors have ended already.

        A driver that was replaced leaves the actors to its successor.
        """
        members = self._members
        self._members = {}
        self._seats = ()
        with suppress(FencedError, InfrastructureError, ray.exceptions.RayError):
            self._end(list(members.values()))
            forget_drivers(self.store)
            if self._devices:
                release()

    def check_room(self, avoid_nodes: frozenset[str]) -> None:
        """Raises as `gather` does if the nodes have no room for the actors; creates and reserves nothing."""
        if self._devices:
            check_room(avoided_nodes(node_names(), avoid_nodes), self._layout, self._pool, self.had_room)

    def leave_devices(self) -> None:
        """Ends the actors that hold devices, and releases these. Raises `FencedError` in a driver that was replaced."""
        seated = [member for name, member in self._members.items() if _role(name) in (ROLLOUT, FOLLOWER, TRAINER)]
        self._end(seated)
        for member in seated:
            del self._members[member.name]
        self._seats = ()
        if self._devices:
            with suppress(ray.exceptions.RayError):
                release()

    # -- lost actors --------------------------------------------------------------------------------------------------

    def lost(self, actor_id: str, reason: str) -> None:
        """Records that an actor died or is unreachable: the next `gather` replaces it, even if it returns."""
        for member in list(self._members.values()):
            if member.actor_id == actor_id and actor_id not in self._ended:
                self._book(member, reason)
                self._end([member])
                if _role(member.name) == CONTROLLER:
                    del self._members[member.name]  # the other actors continue without it

    def actor_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Returns Ray's ids of actors, by name."""
        return {name: self._members[name].actor_id for name in names if name in self._members}

    def end_stuck(self, name: str, reason: str) -> None:
        """Ends an actor that hangs."""
        self.lost(self._members[name].actor_id, reason)

    def _book(self, member: RegisteredActor, reason: str) -> None:
        place = member.node
        with suppress(InfrastructureError):  # without the head, the node cannot be determined
            place = place or node_of_actor(member.actor_id)
        node = self._node_names.get(place, "")
        log.error("%s is lost%s: %s", member.name, f" on {node}" if node else "", reason)
        self.failures.append(ActorFailure(member.name, node, reason))

    def _book_lost(self, found: dict[str, RegisteredActor]) -> None:
        """Records actors that existed at the last `gather` and are gone, unless that is known already."""
        for name, member in self._members.items():
            same = name in found and found[name].actor_id == member.actor_id
            if not same and member.actor_id not in self._ended:
                self._book(member, "it died")

    def _seats_of(self, name: str) -> tuple[Seat, ...]:
        """Returns the devices of a rank or instance."""
        role, _, index = name.partition("-")
        if role == TRAINER:
            return (self._seats[int(index) % len(self._seats)],)
        return tuple(self._seats[number] for number in self._instances.of(name))

    def followers_of(self, name: str) -> list[Any]:
        """Returns the handles of the actors on the other nodes of an instance, in the order of the nodes."""
        return [self._members[each].handle for each in self._instances.members_of(name)[1:] if each in self._members]

    # -- internals ----------------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Looks up the nodes' names. If the cluster has changed, forgets all actors; none is to blame."""
        cluster = str(ray.get_runtime_context().get_session_name())
        if cluster != self._cluster:
            self._members = {}
            self._cluster = cluster
            self._node_names = {}
        self._living = node_names()
        self._node_names |= self._living

    def _find(self, avoided: frozenset[str]) -> dict[str, RegisteredActor]:
        """Returns live actors of this generation on usable nodes; ends all other actors of the run."""
        fixed = {name for role, names in self._wanted.items() for name in names if role != CONTROLLER}
        found: dict[str, RegisteredActor] = {}
        for registered in ray.util.list_named_actors():
            with suppress(ValueError):  # it has ended since it was listed
                handle = ray.get_actor(registered)
                name, _, generation = registered.rpartition(".")
                member = RegisteredActor(name, handle, node_of_actor(handle._actor_id.hex()))
                fits = generation == self._generation and (name in fixed or _role(name) in (CONTROLLER, FOLLOWER))
                if fits and member.actor_id not in self._ended and member.node not in avoided:
                    found[member.name] = member
                else:
                    self._end([member])
        return found

    def _create(self, name: str, avoided: frozenset[str], node: str = "") -> RegisteredActor:
        """Creates a detached actor: it outlives the driver, is found by name, and is restarted only by a driver.

        node: Ray's id of the required node; empty for any node that is not avoided.
        """
        role, _, index = name.partition("-")
        kind = self._rollout_class if role == ROLLOUT else role
        calls = self._endpoint_calls[int(index)] if kind == ENDPOINT else CONCURRENT.get(kind)
        options: dict[str, Any] = {} if calls is None else {"max_concurrency": calls}
        more: tuple[Any, ...] = ()
        if role in self._seated:
            seats = self._seats_of(name)
            options |= seats[0].options
            more = (gpus_of(seats),) if len(seats) > 1 else ()
        else:
            place = on_node(node) if node else elsewhere(self._living, avoided, int(index))
            options["scheduling_strategy"] = place
        made: Any = ray.remote(concurrency_groups=self._groups.get(kind, {}))(CLASSES[kind])
        remote = made.options(
            name=f"{name}.{self._generation}",
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            num_cpus=0,
            **options,
        )
        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                handle = remote.remote(self._spec_json, str(self._folder), int(index), self._term, *more)
            except ValueError as error:  # the name of an ended actor is not free yet
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"{name} cannot be created: its predecessor has not ended: {error}"
                    ) from error
                time.sleep(0.02)
            else:
                return RegisteredActor(name, handle, node)

    def require_current(self) -> None:
        """Raises `FencedError` if a newer driver has announced its term: it may have attached to these actors."""
        require_newest(self.store, self._term)

    def _end(self, members: Iterable[RegisteredActor]) -> None:
        self.require_current()
        for member in members:
            self._ended.add(member.actor_id)
            with suppress(ray.exceptions.RayError):
                ray.kill(member.handle, no_restart=True)


def _rollout_class(spec: RunSpec) -> str:
    if spec.has.samplers:
        return SAMPLER
    if not spec.rollout.engine.continuous:
        return ROLLOUT
    return CONTINUOUS if spec.virtual else CONCURRENT_ROLLOUT


def _role(name: str) -> str:
    return name.partition("-")[0]
