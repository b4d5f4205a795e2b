"""Where the time of iterations goes, by phase and process, and on their critical path: pure functions over records.

Consumes a `ProfileRecord` for each iteration; produces a `Profile` of their means. The parts of a process never overlap.

The critical path is the driver's time, which is the iteration's. Whatever the driver waits for in a phase is the work of
the process that was busiest in it: a controller, or else a trainer's rank or an engine. What that controller waits for is
the work of the busiest engine or judge. Of a wait, the rest is `ray`: calls on their way, and actors that have not begun;
of a controller's wait, it is `waiting`: for an engine, with the calls. So the path's parts add up to the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flows.run.profile_merging import busiest_in
from flows.run.profile_record import BETWEEN, DRIVER, PHASES, ProfilePart, ProfileRecord, role_of
from yatt_core.spent_time import OTHER, RAY, WAITING

CONTROLLER = "controller"
TRAINER = "trainer"
ROLLOUT = "rollout"
ENDPOINT = "endpoint"
ROLES = (DRIVER, CONTROLLER, ROLLOUT, ENDPOINT, TRAINER)
"""Kinds of processes, in the order in which they are shown."""
JUDGE = "judge"
AS_JUDGE = " as judge"
"""The call in which an instance judges, and how it is then named."""
OTHERS = "-others"
"""What follows the name of a role in the name of those of its processes that are not recorded one by one: their mean."""


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """Seconds of one kind that a process spent in a phase."""

    phase: str
    process: str
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Frame:
    """Seconds of a part of a process's work, without the parts within it; for flame graphs."""

    process: str
    path: tuple[str, ...]
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The means over recorded iterations; seconds of an iteration.

    recorded: the iterations that it is about.
    not_recorded: iterations that were asked for and have no record.
    wall: from one commit to the next.
    unheard: processes that reported in only some of the iterations; they count as idle in the others.
    processes: what each process spent in each phase, by kind.
    path: the critical path, in the order of the phases.
    others: of roles with many processes, the number of those that are shown as one.
    """

    recorded: tuple[int, ...]
    not_recorded: tuple[int, ...]
    wall: float
    unheard: tuple[str, ...]
    processes: tuple[ProfileStep, ...]
    path: tuple[ProfileStep, ...]
    frames: tuple[Frame, ...]
    others: Mapping[str, int]

    @property
    def accounted(self) -> float:
        """Seconds of the critical path that have a name."""
        return sum(step.seconds for step in self.path if step.kind != OTHER)

    @property
    def not_accounted(self) -> float:
        """The rest of the wall time: work without a name, and what the path misses of it."""
        return self.wall - self.accounted


def profile_of(records: Mapping[int, ProfileRecord | None]) -> Profile:
    """Returns the profile of iterations; those whose record is None are named and count nowhere."""
    known = {iteration: record for iteration, record in records.items() if record is not None}
    share = 1.0 / max(1, len(known))
    every = {name for record in known.values() for name in record.processes}
    whole = [_with_mean_of_others(record, every) for record in known.values()]
    heard = [record.processes.keys() for record in whole]
    processes = [step for record in whole for step in process_steps(record)]
    path = [step for record in known.values() for step in critical_path(record)]
    frames = [frame for record in whole for frame in _frames(record)]
    others = [(role, each.count) for record in whole for role, each in record.others.items()]
    return Profile(
        recorded=tuple(sorted(known)),
        not_recorded=tuple(sorted(records.keys() - known.keys())),
        wall=sum(record.wall for record in known.values()) * share,
        unheard=tuple(sorted(name for name in every if any(name not in names for names in heard))),
        processes=_mean_steps(processes, share),
        path=_mean_steps(path, share),
        frames=_mean_frames(frames, share),
        others={role: max(count for of, count in others if of == role) for role, _ in others},
    )


def _with_mean_of_others(record: ProfileRecord, names: Iterable[str]) -> ProfileRecord:
    """Returns a record in which processes that only other records have one by one have the mean of the others of their role."""
    processes = dict(record.processes)
    left = dict(record.others)
    for name in sorted(set(names) - processes.keys(), key=process_order):
        others = left.get(role_of(name))
        if others is not None and others.count > 0:
            processes[name] = others.parts
            left[role_of(name)] = replace(others, count=others.count - 1)
    return replace(record, processes=processes, others={role: each for role, each in left.items() if each.count > 0})


def process_steps(record: ProfileRecord) -> list[ProfileStep]:
    """Returns what each process spent. The driver's waits are divided into `ray` and `waiting` for actors."""
    steps = []
    waited: dict[str, float] = {}
    for step in critical_path(record):
        if step.process != DRIVER:
            waited[step.phase] = waited.get(step.phase, 0.0) + step.seconds
    for name, part in _named_parts(record):
        steps.append(ProfileStep(part.phase, _shown(name, part), part.kind, part.seconds))
    for phase, seconds in waited.items():
        steps += [ProfileStep(phase, DRIVER, WAITING, seconds), ProfileStep(phase, DRIVER, RAY, -seconds)]
    return steps


def critical_path(record: ProfileRecord) -> list[ProfileStep]:
    """Returns the critical path of an iteration; its seconds add up to those of the driver."""
    steps = []
    waits: dict[str, float] = {}
    for part in record.processes.get(DRIVER, ()):
        if part.kind == RAY and part.phase != BETWEEN:
            waits[part.phase] = waits.get(part.phase, 0.0) + part.seconds
        else:
            steps.append(ProfileStep(part.phase, DRIVER, part.kind, part.seconds))
    for phase, seconds in waits.items():
        first = _busiest(record, phase, (CONTROLLER,)) or _busiest(record, phase, (TRAINER, ROLLOUT, ENDPOINT))
        steps += _explained(
            record=record, phase=phase, name=first, seconds=seconds, rest=ProfileStep(phase, DRIVER, RAY, 0.0)
        )
    return steps


def _explained(
    record: ProfileRecord, phase: str, name: str | None, seconds: float, rest: ProfileStep
) -> list[ProfileStep]:
    """Returns what a process did while another waited for it.

    name: the process; None if no process has reported any work.
    rest: the step to which what it does not explain is added.
    """
    parts = [part for part in record.processes.get(name or "", ()) if part.phase == phase]
    busy = sum(part.seconds for part in parts)
    # A process may have worked for longer than it was waited for: the driver does other things meanwhile.
    scale = min(1.0, seconds / busy) if busy > 0.0 else 0.0
    steps = [ProfileStep(rest.phase, rest.process, rest.kind, seconds - scale * busy)]
    waited = 0.0
    for part in parts:
        if part.kind == WAITING and role_of(name or "") == CONTROLLER:
            waited += scale * part.seconds
        else:
            steps.append(ProfileStep(phase, _shown(name or "", part), part.kind, scale * part.seconds))
    if waited > 0.0:
        engine = _busiest(record, phase, (ROLLOUT, ENDPOINT))
        steps += _explained(
            record=record, phase=phase, name=engine, seconds=waited, rest=ProfileStep(phase, name or "", WAITING, 0.0)
        )
    return steps


def _busiest(record: ProfileRecord, phase: str, roles: Sequence[str]) -> str | None:
    """Returns the process of some roles that worked longest in a phase, its waits included; None if none did."""
    return busiest_in({name: parts for name, parts in record.processes.items() if role_of(name) in roles}, phase)


def _frames(record: ProfileRecord) -> list[Frame]:
    """Returns the parts of all processes, below their phases."""
    return [
        Frame(_shown(name, part), (part.phase, *part.path), part.kind, part.seconds)
        for name, part in _named_parts(record)
    ]


def _named_parts(record: ProfileRecord) -> Iterator[tuple[str, ProfilePart]]:
    """Yields the parts of all processes, and the mean of the others of each role."""
    for name, parts in record.processes.items():
        yield from ((name, part) for part in parts)
    for role, others in record.others.items():
        yield from ((role + OTHERS, part) for part in others.parts)


def _mean_steps(steps: Iterable[ProfileStep], share: float) -> tuple[ProfileStep, ...]:
    sums: dict[tuple[str, str, str], float] = {}
    for step in steps:
        key = (step.phase, step.process, step.kind)
        sums[key] = sums.get(key, 0.0) + step.seconds * share
    # Differences of equal times leave rounding errors.
    found = [ProfileStep(*key, max(0.0, seconds)) for key, seconds in sums.items()]
    ordered = sorted(found, key=lambda step: (PHASES.index(step.phase), process_order(step.process), -step.seconds))
    return tuple(step for step in ordered if step.seconds > 0.0)


def _mean_frames(frames: Iterable[Frame], share: float) -> tuple[Frame, ...]:
    sums: dict[tuple[str, tuple[str, ...], str], float] = {}
    for frame in frames:
        key = (frame.process, frame.path, frame.kind)
        sums[key] = sums.get(key, 0.0) + frame.seconds * share
    found = [Frame(*key, seconds) for key, seconds in sums.items() if seconds > 0.0]
    return tuple(
        sorted(found, key=lambda one: (process_order(one.process), PHASES.index(one.path[0]), one.path, one.kind))
    )


def process_order(name: str) -> tuple[int, bool, int, str]:
    """Returns a key by which processes are sorted: by role, then by number, the others of the role last."""
    role = role_of(name)
    number = name.removesuffix(AS_JUDGE).rpartition("-")[2]
    return (
        ROLES.index(role) if role in ROLES else len(ROLES),
        is_others(name),
        int(number) if number.isdigit() else 0,
        name,
    )


def is_others(name: str) -> bool:
    """Returns True for the name of those processes of a role that are not recorded one by one."""
    return name.removesuffix(AS_JUDGE).endswith(OTHERS)


def _shown(name: str, part: ProfilePart) -> str:
    """Returns how a process is named for a part of its work."""
    return name + AS_JUDGE if role_of(name) == ROLLOUT and part.path[:1] == (JUDGE,) else name
