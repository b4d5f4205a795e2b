"""What a placement policy can see: facts about the cluster, past telemetry, and the current state of the pool.

A policy does not see future lengths, schedules, the seed or later waves. Its time constants are given or fitted
to telemetry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from yatt_core.placement.actions import Action
from yatt_core.placement.moments import Moment
from yatt_core.placement.work import WaveWork
from yatt_core.placement.workload import EngineConstants, SwitchCosts


@dataclass(frozen=True, slots=True)
class Setting:
    """What a pool consists of.

    speeds: speed of each instance.
    control_period_s: seconds between two actions of the runtime policy.
    tool_tokens: tokens of a tool call's output.
    judgements: judgements of each response; 0 if no judge runs on a device.
    prompts: number of valid groups that an iteration needs.
    migrates: whether running sequences can move to another instance.
    moved: number of moved sequences that an instance can work on at once, since each is a request of its own; None if any.
    lent: number of the first instances that are on the trainer's devices, and generate only while it does not learn.
    lent_after_s: seconds of an iteration for which the trainer works there; None if it keeps its devices for all of it.
    """

    speeds: tuple[float, ...]
    rollout: EngineConstants
    judge: EngineConstants
    switch: SwitchCosts
    control_period_s: float
    tool_tokens: int = 0
    judgements: int = 1
    prompts: int = 1
    migrates: bool = True
    moved: int | None = None
    lent: int = 0
    lent_after_s: float | None = 0.0


@dataclass(slots=True)
class Usage:
    """The work of an instance since it took up a role, and its seconds; an engine's time constants are fitted to it.

    sequence_steps: decode steps times sequences.
    context_steps: decode steps times tokens attended to.
    """

    instance: int
    role: str
    steps: int = 0
    sequence_steps: int = 0
    context_steps: int = 0
    decode_s: float = 0.0
    prompt_tokens: int = 0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SwitchTime:
    """A measured change of an instance's role.

    starting: whether an iteration began with it.
    seconds: how long the instance was out of service.
    """

    starting: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class IterationTelemetry:
    """A past iteration: its waves as they turned out, the engines' work, and the seconds of collect.

    judging_s: seconds of collect after the last rollout of each wave, in total.
    """

    roles: str
    waves: tuple[WaveWork, ...]
    usage: tuple[Usage, ...]
    collect_s: float
    judging_s: float
    switches: tuple[SwitchTime, ...] = ()


class InstanceSeen(Protocol):
    """An instance, as known to its dispatcher.

    leaving, joining: the role to which the instance is switching; empty if none. It is in `leaving` until the
        instance has no sequences left, and in `joining` from then on.
    """

    index: int
    speed: float
    role: str
    leaving: str
    joining: str
    intake: int | None

    @property
    def ready(self) -> bool:
        """Whether it may get work: it is not switching, and the trainer does not work on its device."""
        ...

    @property
    def outstanding(self) -> int:
        """Sequences assigned to it that have not finished."""
        ...


class PoolSeen(Protocol):
    """The current state of a pool.

    submitted: number of samples in the wave.
    """

    now: float
    submitted: int

    @property
    def unrolled(self) -> int:
        """Samples of the wave whose rollout has not finished."""
        ...

    @property
    def unjudged(self) -> int:
        """Samples of the wave that have not been judged yet."""
        ...

    @property
    def instances(self) -> Sequence[InstanceSeen]:
        """All instances, by number."""
        ...

    def waiting(self, role: str) -> int:
        """Returns the number of sequences that wait for an instance of the role; each judgement counts as one."""
        ...


class RuntimePolicy(Protocol):
    """How a placement is adapted within an iteration."""

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the actions to take now. It depends only on the pool and on what the policy was constructed with."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of an iteration.

    roles: role of each instance at the start of the iteration.
    prediction_s: predicted seconds of collect; None without telemetry.
    state: passed to the next call of `plan`.
    """

    roles: str
    runtime_policy: RuntimePolicy
    prediction_s: float | None
    reason: str
    state: dict[str, Any] = field(default_factory=dict)


class PlacementPolicy(Protocol):
    """Plans an iteration: a pure function of its arguments."""

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Returns the plan for the next iteration."""
        ...
