"""Which instance of the pool gets the next batch, and which role each instance has: a pure state machine, owning no I/O.

Late binding: requests wait in one queue a role, and the head goes to the instance with the least outstanding work for its
speed once that instance takes it in, so that a slow one never holds work that a fast one could do. A placement's runtime policy
looks at it (`placement.seen.PoolSeen`), and its actions change roles; what an instance holds decides when it goes over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, HandOver, Intake, Switch, Take


@dataclass(frozen=True, slots=True)
class Ticket:
    """A batch that waits for an instance. size: its sequences."""

    number: int
    owner: str
    size: int
    role: str = ROLLOUT


@dataclass(frozen=True, slots=True)
class Limits:
    """What an instance takes in at once. batches: requests under way. sequences: of all of them; a single one may have more.

    Two batches keep an engine busy that works on one at a time, while results travel.
    """

    batches: int | None = 2
    sequences: int | None = None


@dataclass(slots=True)
class PoolInstance:
    """An instance as its dispatcher knows it. leaving, joining: the role that it is going over to, else empty.

    migrating: what it holds leaves with it. afterwards: the role that it is to have behind the one that it is joining. intake: it
    gets work only while it has less than this outstanding. held: sequences that have not ended, by ticket.
    """

    index: int
    speed: float
    role: str
    ready: bool = True
    leaving: str = ""
    migrating: bool = False
    joining: str = ""
    afterwards: str = ""
    intake: int | None = None
    lost: bool = False
    held: dict[int, int] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """Sequences that it has and has not ended."""
        return sum(self.held.values())

    def admits(self, size: int, limits: Limits) -> bool:
        """Whether it takes so many sequences more."""
        if self.lost or not self.ready or self.leaving:
            return False
        if self.intake is not None and self.outstanding >= self.intake:
            return False
        if limits.batches is not None and len(self.held) >= limits.batches:
            return False
        return limits.sequences is None or not self.held or self.outstanding + size <= limits.sequences


class DispatchQueue:
    """Grants tickets to instances, first come first served by role. It is the pool that a runtime policy sees.

    speeds: of each instance. limits: of an instance by role; two batches where a role is not named. roles: of each at first;
    all roll out by default. now: seconds of the iteration, kept up to date by the owner.
    """

    def __init__(
        self, speeds: Sequence[float], limits: Mapping[str, Limits] | None = None, roles: Sequence[str] | None = None
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
        """The devices: those that roll out or judge, and may change between the two."""
        return [instance for instance in self._instances if instance.role in (ROLLOUT, JUDGE)]

    # -- tickets ------------------------------------------------------------------------------------------------------

    def submit(self, owner: str, size: int, role: str = ROLLOUT, at_the_head: bool = False) -> Ticket:
        """Queues a batch behind the others, or before them; `grant` says when it may go."""
        self._numbers += 1
        ticket = Ticket(self._numbers, owner, size, role)
        queue = self._queues.setdefault(role, deque())
        if at_the_head:
            queue.appendleft(ticket)
        else:
            queue.append(ticket)
        return ticket

    def grant(self) -> list[tuple[Ticket, int]]:
        """Tickets that may go now, each with its instance's index."""
        granted = []
        for role, queue in self._queues.items():
            limits = self._limits.get(role, Limits())
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
        """So many more sequences of a granted batch have ended; unknown numbers (of a forgotten owner) are no error."""
        if number in self._held:
            held = self._instances[self._held[number][1]].held
            held[number] = max(0, held[number] - ended)

    def release(self, number: int) -> None:
        """A granted batch is done; unknown numbers (of a forgotten owner) are no error."""
        if number in self._held:
            self._drop([number])

    def forget(self, owner: str) -> list[Ticket]:
        """Drops all that an owner waits for or holds, who is dead or gave up; returns what it waited for."""
        forgotten = [ticket for queue in self._queues.values() for ticket in queue if ticket.owner == owner]
        for role, queue in self._queues.items():
            self._queues[role] = deque(ticket for ticket in queue if ticket.owner != owner)
        self._drop([number for number, (ticket, _) in self._held.items() if ticket.owner == owner])
        return forgotten

    def owners(self) -> set[str]:
        """Everybody who waits for an instance or holds one."""
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
        """The instance that was granted this batch is dead: it gets no more, and all that it held is dropped.

        A number that is not outstanding any more says nothing about the one that has taken the dead one's place.
        """
        if number in self._held:
            self.fail(self._held[number][1])

    def is_lost(self, index: int) -> bool:
        """True from the report of an instance's death until it is replaced."""
        return self._instances[index].lost

    def fail(self, index: int) -> None:
        """An instance is dead: it gets no more, and all that it held is dropped."""
        instance = self._instances[index]
        instance.lost, instance.ready = True, False
        self._drop(list(instance.held))

    def renew(self, index: int) -> None:
        """A new instance stands in the place of an old one, whose batches are dropped; it begins with the old one's role."""
        instance = self._instances[index]
        self._drop(list(instance.held))
        role = instance.afterwards or instance.joining or instance.leaving or instance.role
        self._switching = [entry for entry in self._switching if entry[0] != index]
        self._instances[index] = PoolInstance(index, instance.speed, role)

    def stranded(self) -> list[Ticket]:
        """Takes out what nobody is left to answer; empty while there is an instance."""
        stranded: list[Ticket] = []
        for role, queue in self._queues.items():
            able = self.instances if role in (ROLLOUT, JUDGE) else [i for i in self._instances if i.role == role]
            if all(i.lost for i in able):
                stranded += queue
                queue.clear()
        return stranded

    def waiting(self, role: str) -> int:
        """Sequences that wait for an instance of the role."""
        return sum(ticket.size for ticket in self._queues.get(role, ()))

    # -- roles --------------------------------------------------------------------------------------------------------

    def begin_wave(self, wave: str, samples: int) -> None:
        """So many samples are to be rolled out and judged. wave: its name, which notes of it carry."""
        self._wave, self.submitted, self._noted = wave, samples, {}

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """So many samples of a part of the wave are rolled out, and judged, in all; a later word of a part counts."""
        if wave == self._wave:
            self._noted[part] = (rolled, judged)

    @property
    def unrolled(self) -> int:
        """Samples of the wave that are still rolled out, or not begun."""
        return max(0, self.submitted - sum(rolled for rolled, _ in self._noted.values()))

    @property
    def unjudged(self) -> int:
        """Samples of the wave that are not judged yet."""
        return max(0, self.submitted - sum(judged for _, judged in self._noted.values()))

    @property
    def drained(self) -> bool:
        """True from the wave's last rollout on."""
        return (
            not self.unrolled
            and not self._queues.get(ROLLOUT)
            and not any(i.outstanding for i in self._instances if i.role == ROLLOUT)
        )

    def apply(self, action: Action) -> int:
        """Carries an action out as far as that is bookkeeping; returns how many sequences the instance has to give back.

        Raises `ConfigurationError` for one that this pool cannot do, which is a defect of the policy.
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
        """Instances that migrate, and how many sequences each still holds: those that were on their way to it, at first."""
        return [(i.index, i.outstanding) for i in self._instances if i.leaving and i.migrating and i.outstanding]

    def assign(self, roles: str, starting: bool) -> None:
        """Names the roles; who holds something goes over when that is done.

        starting: an iteration begins with them. Who began the one before with another role takes its new one up anew, even if
        it has it by now: training had all devices between the two.
        """
        before, self._started = self._started, roles if starting else self._started
        for place, (instance, role) in enumerate(zip(self.instances, roles, strict=True)):
            anew = starting and bool(before) and before[place] != role
            instance.intake, instance.migrating = None, False
            if instance.joining:  # a switch that is under way cannot be called back
                instance.afterwards = "" if instance.joining == role else role
            elif instance.ready:
                instance.leaving = "" if instance.role == role and not anew else role
                self._leave_if_empty(instance)

    def switches(self) -> list[tuple[int, str]]:
        """Instances that are to begin their switch now, each with its new role; `switched` says when it is done."""
        due, self._switching = self._switching, []
        return due

    def switched(self, index: int) -> None:
        """An instance has taken up its new role."""
        instance = self._instances[index]
        if instance.joining:
            instance.role, instance.joining, instance.ready = instance.joining, "", True
            instance.leaving, instance.afterwards = instance.afterwards, ""
            self._leave_if_empty(instance)

    def unserved(self) -> list[Action]:
        """What has to happen where all stands still: a role that is waited for, and that nobody has, gets all that is idle.

        Of use where a placement's runtime policy counted on less than there was to do, such as shards that are made once more.
        """
        devices = [i for i in self.instances if not i.lost]
        if any(i.held or not i.ready or i.leaving for i in devices):
            return []
        for role in (ROLLOUT, JUDGE):
            if self.waiting(role) and not any(i.role == role for i in devices):
                return [Switch(i.index, role) for i in devices]
        return []

    def _leave_if_empty(self, instance: PoolInstance) -> None:
        if instance.leaving and instance.ready and not instance.held:
            instance.ready, instance.joining, instance.leaving = False, instance.leaving, ""
            self._switching.append((instance.index, instance.joining))
