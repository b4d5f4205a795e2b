"""What a placement policy may see: facts of the cluster, telemetry of past iterations, and the pool as it stands.

A policy sees neither lengths to come, nor schedules, seed or later waves. Its time constants are facts, or fitted to telemetry.
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
    """What a pool is made of. speeds: of each instance. tool_tokens: output of a tool call. judgements: of a response; 0 where
    no device judges. prompts: quota of groups. migrates: sequences under way can move to another instance.
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


@dataclass(slots=True)
class Usage:
    """Work of an instance since it took up a role, and its seconds; what an engine's time constants are fitted to.

    sequence_steps: decode steps times sequences. context_steps: decode steps times tokens attended to.
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
class IterationTelemetry:
    """A past iteration: its waves as they turned out, the engines' work, and the seconds of collect.

    judging_s: seconds of collect behind the last rollouts of its waves.
    """

    roles: str
    waves: tuple[WaveWork, ...]
    usage: tuple[Usage, ...]
    collect_s: float
    judging_s: float


class InstanceSeen(Protocol):
    """An instance as its dispatcher knows it. leaving, joining: the role that it is going over to, else empty."""

    index: int
    speed: float
    role: str
    ready: bool
    leaving: str
    joining: str
    intake: int | None

    @property
    def outstanding(self) -> int:
        """Sequences that it has and has not ended."""
        ...


class PoolSeen(Protocol):
    """A pool as it stands. submitted: samples of the wave; unrolled, unjudged: of these. waiting: sequences in a role's queue."""

    now: float
    submitted: int

    @property
    def unrolled(self) -> int:
        """Samples of the wave that are still rolled out, or not begun."""
        ...

    @property
    def unjudged(self) -> int:
        """Samples of the wave that are not judged yet."""
        ...

    @property
    def instances(self) -> Sequence[InstanceSeen]:
        """All of them, by number."""
        ...

    def waiting(self, role: str) -> int:
        """Sequences that wait for an instance of the role; of a judge each judgement is one."""
        ...


class RuntimePolicy(Protocol):
    """How a placement is carried on within an iteration."""

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """What to do now. It looks at the pool, and remembers nothing but what it was made with."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """roles: of each instance at the iteration's start. prediction_s: seconds of collect. state: goes to the next plan."""

    roles: str
    runtime_policy: RuntimePolicy
    prediction_s: float | None
    reason: str
    state: dict[str, Any] = field(default_factory=dict)


class PlacementPolicy(Protocol):
    """Plans an iteration: a pure function of what it is given."""

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """The plan of the iteration behind the past ones."""
        ...
