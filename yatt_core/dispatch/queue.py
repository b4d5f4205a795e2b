"""Which pool instance gets the next batch and which role each instance has: a pure state machine without I/O.

Late binding: requests wait in one queue per role. The head of the queue goes to the instance with the least
outstanding work relative to its speed, as soon as that instance admits it, so that a slow instance never holds work
that a fast one could do. A placement's runtime policy observes the pool (`placement.seen.PoolSeen`), and its
actions change roles; an instance switches as soon as its current work allows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, HandOver, Intake, Switch, Take


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch that waits for an instance.

    size: its number of sequences.
    ahead: whether it goes ahead of those that are not.
    """

    number: int
    owner: str
    size: int
    role: str = ROLLOUT
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much work an instance admits at once.

    batches: the maximum number of concurrent requests.
    sequences: the maximum over all requests; a single request may have more.

    With two batches, an engine that works on one at a time stays busy while results are in transit.
    """

    batches: int | None = 2
    sequences: int | None = None


@dataclass(slots=True)
class PoolInstance:
    """The dispatcher's view of an instance.

    leaving: the role that it will switch to when its current work allows it; else empty.
    joining: the role that it is switching to now; else empty.
    migrating: whether its current work moves to other instances when it switches.
    afterwards: the role that it gets after the one that it is joining.
    intake: the instance gets work only while it has fewer than this many sequences outstanding.
    in_service: False while it switches.
    kept: the trainer works on its device; the instance gets no work.
    held: the sequences that have not ended, by ticket.
    """

    index: int
    speed: float
    role: str
    in_service: bool = True
    leaving: str = ""
    migrating: bool = False
    joining: str = ""
    afterwards: str = ""
    intake: int | None = None
    lost: bool = False
    kept: bool = False
    held: dict[int, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it may get work in its role."""
        return self.in_service and not self.kept

    @property
    def outstanding(self) -> int:
        """The sequences assigned to the instance that have not ended."""
        return sum(self.held.values())

    def admits(self, size: int, limits: AdmissionLimits) -> bool:
        """Returns True if the instance admits this many more sequences."""
        if self.lost or not self.ready or self.leaving:
            return False
        if self.intake is not None and self.outstanding >= self.intake:
            return False
        if limits.batches is not None and len(self.held) >= limits.batches:
            return False
        return limits.sequences is None or not self.held or self.outstanding + size <= limits.sequences


class DispatchQueue:
    """Grants tickets to instances, first come, first served within each role; also the pool that a runtime policy sees.

    speeds: the speed of each instance.
    limits: an instance's limits by role; for a role that is missing, two batches.
    roles: the initial role of each instance; by default, all roll out.
    now: seconds since the start of the iteration, kept current by the owner.
    """

    def __init__(
        self,
        speeds: Sequence[float],
        limits: Mapping[str, AdmissionLimits] | None = None,
        roles: Sequence[str] | None = None,
    ) -> None:
        given = roles or ROLLOUT * len(speeds)
        self._instances = [PoolInstance(i, speed, given[i]) for i, speed in enumerate(speeds)]
        self.now = 0.0
        self.submitted = 0
        self._wave = self._started = ""
        self._noted: dict[str, tuple[int, int]] = {}
        self._limits = dict(limits or {})
        self._queues: dict[str, deque[Ticket]] = {}
        self._held: dict[int, tuple[Ticket, int]] = {}
        self._switching: list[tuple[int, str]] = []
        self._numbers = 0

    @property
    def instances(self) -> list[PoolInstance]:
        """The devices: the instances that roll out or judge and can switch between the two."""
        return [instance for instance in self._instances if instance.role in (ROLLOUT, JUDGE)]

    # -- tickets ------------------------------------------------------------------------------------------------------

    def submit(self, owner: str, size: int, role: str = ROLLOUT, at_the_head: bool = False) -> Ticket:
        """Queues a batch at the end or, with `at_the_head`, behind those that were; `grant` returns it when it may start."""
        self._numbers += 1
        ticket = Ticket(number=self._numbers, owner=owner, size=size, role=role, ahead=at_the_head)
        queue = self._queues.setdefault(role, deque())
        place = sum(1 for _ in takewhile(lambda other: other.ahead, queue)) if at_the_head else len(queue)
        queue.insert(place, ticket)
        return ticket

    def grant(self) -> list[tuple[Ticket, int]]:
        """Returns the tickets that may start now, each with the index of its instance."""
        granted = []
        for role, queue in self._queues.items():
            limits = self._limits.get(role, AdmissionLimits())
            while queue:
                free = [i for i in self._instances if i.role == role and i.admits(queue[0].size, limits)]
                if not free:
                    break
                instance = min(free, key=lambda i: (i.outstanding / i.speed, i.index))
                ticket = queue.popleft()
                instance.held[ticket.number] = ticket.size
                self._held[ticket.number] = (ticket, instance.index)
                granted.append((ticket, instance.index))
        return granted

    def progress(self, number: int, ended: int) -> None:
        """Records that `ended` more sequences of a granted batch have ended.

        Unknown numbers (of a forgotten owner) are ignored.
        """
        if number in self._held:
            held = self._instances[self._held[number][1]].held
            held[number] = max(0, held[number] - ended)

    def release(self, number: int) -> None:
        """Records that a granted batch is done; unknown numbers (of a forgotten owner) are ignored."""
        if number in self._held:
            self._drop([number])

    def forget(self, owner: str) -> list[Ticket]:
        """Drops the queued and granted tickets of an owner that is dead or gave up; returns the queued ones."""
        forgotten = [ticket for queue in self._queues.values() for ticket in queue if ticket.owner == owner]
        for role, queue in self._queues.items():
            self._queues[role] = deque(ticket for ticket in queue if ticket.owner != owner)
        self._drop([number for number, (ticket, _) in self._held.items() if ticket.owner == owner])
        return forgotten

    def granted(self, owner: str) -> dict[int, list[int]]:
        """Returns the numbers of an owner's granted tickets, by the index of their instance."""
        found: dict[int, list[int]] = {}
        for number, (ticket, index) in self._held.items():
            if ticket.owner == owner:
                found.setdefault(index, []).append(number)
        return found

    def owners(self) -> set[str]:
        """Returns all owners that wait for an instance or hold one."""
        waiting = {ticket.owner for queue in self._queues.values() for ticket in queue}
        return waiting | {ticket.owner for ticket, _ in self._held.values()}

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            _, index = self._held.pop(number)
            instance = self._instances[index]
            instance.held.pop(number, None)
            self._leave_if_empty(instance)

    # -- instances ----------------------------------------------------------------------------------------------------

    def lose(self, number: int) -> None:
        """Records the death of the instance that got this batch: the instance gets no more work.

        The instance's batches are dropped.
        If the number is no longer outstanding, nothing happens: the instance may already have been replaced.
        """
        if number in self._held:
            self.fail(self._held[number][1])

    def is_lost(self, index: int) -> bool:
        """Returns True from the report of an instance's death until its replacement."""
        return self._instances[index].lost

    def fail(self, index: int) -> None:
        """Records that an instance is dead: it gets no more work, and its batches are dropped."""
        instance = self._instances[index]
        instance.lost = True
        instance.in_service = False
        self._drop(list(instance.held))

    def renew(self, index: int) -> None:
        """Replaces an instance, whose batches are dropped; the new one starts with the role of the old one."""
        instance = self._instances[index]
        self._drop(list(instance.held))
        role = instance.afterwards or instance.joining or instance.leaving or instance.role
        self._switching = [entry for entry in self._switching if entry[0] != index]
        self._instances[index] = PoolInstance(index, instance.speed, role, kept=instance.kept)

    def stranded(self) -> list[Ticket]:
        """Removes and returns the tickets that no instance is left to answer; empty while there is an instance.

        Instances that are kept are no reason to wait for one that is lost: only its replacement makes use of the time.
        """
        stranded: list[Ticket] = []
        for role, queue in self._queues.items():
            able = self.instances if role in (ROLLOUT, JUDGE) else [i for i in self._instances if i.role == role]
            lost = [i for i in able if i.lost]
            if len(lost) == len(able) or (lost and all(i.lost or i.kept for i in able)):
                stranded += queue
                queue.clear()
        return stranded

    def waiting(self, role: str) -> int:
        """Returns the number of sequences that wait for an instance with this role."""
        return sum(ticket.size for ticket in self._queues.get(role, ()))

    # -- roles --------------------------------------------------------------------------------------------------------

    def begin_wave(self, wave: str, samples: int) -> None:
        """Starts a wave with this many samples to roll out and judge.

        wave: the wave's name, which its notes carry.
        """
        self._wave = wave
        self.submitted = samples
        self._noted = {}

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Records how many samples of a part of the wave have been rolled out and judged in total.

        A later note about the same part replaces an earlier one.
        """
        if wave == self._wave:
            self._noted[part] = (rolled, judged)

    @property
    def unrolled(self) -> int:
        """The samples of the wave that are still being rolled out or have not started."""
        return max(0, self.submitted - sum(rolled for rolled, _ in self._noted.values()))

    @property
    def unjudged(self) -> int:
        """The samples of the wave that are not yet judged."""
        return max(0, self.submitted - sum(judged for _, judged in self._noted.values()))

    @property
    def drained(self) -> bool:
        """True if the wave's last rollout has ended."""
        return (
            not self.unrolled
            and not self._queues.get(ROLLOUT)
            and not any(i.outstanding for i in self._instances if i.role == ROLLOUT)
        )

    def apply(self, action: Action) -> int:
        """Carries out the bookkeeping of an action; returns how many sequences the instance has to return.

        Raises `ConfigurationError` for an action that is impossible in this pool, which is a defect of the
        policy.
        """
        instance = self._instances[action.instance]
        match action:
            case Switch() | HandOver():
                able = instance.ready and not instance.leaving and not instance.lost and instance.role != action.role
                if not able or (isinstance(action, Switch) and instance.outstanding):
                    raise ConfigurationError(f"at {self.now:g} s: {action} is not possible for {instance}")
                instance.leaving = action.role
                instance.migrating = isinstance(action, HandOver) and action.migrate
                self._leave_if_empty(instance)
                return instance.outstanding if instance.migrating else 0
            case Take():
                return min(action.count, instance.outstanding)
            case Intake():
                instance.intake = action.limit
                return 0

    def lingering(self) -> list[tuple[int, int]]:
        """Returns the migrating instances and the number of sequences that each of them still holds.

        At first, these are the sequences that were in transit to the instance.
        """
        return [(i.index, i.outstanding) for i in self._instances if i.leaving and i.migrating and i.outstanding]

    def assign(self, roles: str, starting: bool) -> None:
        """Assigns the roles; an instance that still holds work switches when that work is done.

        starting: an iteration begins with these roles. An instance that began the previous iteration with
            another role has to take up its new role even if it already switched to that role: training used all
            devices in between.
        """
        before = self._started
        self._started = roles if starting else self._started
        for place, (instance, role) in enumerate(zip(self.instances, roles, strict=True)):
            anew = starting and bool(before) and before[place] != role
            instance.intake = None
            instance.migrating = False
            instance.kept = instance.kept and not starting
            if instance.joining:  # a switch in progress cannot be cancelled
                instance.afterwards = "" if instance.joining == role else role
            elif instance.in_service:
                instance.leaving = "" if instance.role == role and not anew else role
                self._leave_if_empty(instance)

    def keep(self, indices: Collection[int]) -> list[tuple[int, int]]:
        """Keeps these instances free of new work, and no others; returns those of them that hold sequences, and how many.

        The pool begins each iteration without kept instances.
        """
        for instance in self.instances:
            instance.kept = instance.index in indices
        return [(i.index, i.outstanding) for i in self.instances if i.kept and i.outstanding]

    def switches(self) -> list[tuple[int, str]]:
        """Returns the instances that should start their switch now, each with its new role.

        `switched` reports that the switch is complete.
        """
        due = self._switching
        self._switching = []
        return due

    def switched(self, index: int) -> None:
        """Records that an instance has taken up its new role."""
        instance = self._instances[index]
        if instance.joining:
            instance.role = instance.joining
            instance.joining = ""
            instance.in_service = True
            instance.leaving = instance.afterwards
            instance.afterwards = ""
            self._leave_if_empty(instance)

    def unserved(self) -> list[Action]:
        """Returns the actions that end a standstill: a role with waiting work and no instance gets all idle instances.

        This is needed if there is more work than a placement's runtime policy expected, for example because
        shards are repeated.
        """
        devices = [i for i in self.instances if not i.lost and not i.kept]
        if any(i.held or not i.ready or i.leaving for i in devices):
            return []
        for role in (ROLLOUT, JUDGE):
            if self.waiting(role) and not any(i.role == role for i in devices):
                return [Switch(i.index, role) for i in devices]
        return []

    def _leave_if_empty(self, instance: PoolInstance) -> None:
        if instance.leaving and instance.in_service and not instance.held:
            instance.in_service = False
            instance.joining = instance.leaving
            instance.leaving = ""
            self._switching.append((instance.index, instance.joining))
