"""Placement policies: pure functions from what was measured to which role sits on which device, with a reason in words.

`colocate` is the paper's full colocation (arXiv 2508.07970): every phase has all devices, roles take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a policy may see. devices: schedulable slots. seconds: of the last iteration, by phase (empty at first)."""

    iteration: int
    devices: int
    rollout_instances: int
    trainer_ranks: int
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """roles: phase -> role of each device. prediction: seconds by phase. All of it is recorded before it takes effect."""

    mode: str
    roles: Mapping[str, tuple[str, ...]]
    prediction: Mapping[str, float]
    reason: str


class Policy(Protocol):
    """Decides an iteration's placement; its state, if any, travels in the control state."""

    def plan(self, telemetry: Telemetry) -> Decision:
        """The placement of the iteration that the telemetry names."""
        ...


class Colocate:
    """Every phase has all devices."""

    def plan(self, telemetry: Telemetry) -> Decision:
        """Gives all devices to rollout while experience is made, and to the trainer while it is learnt from."""

        def everyone(role: str, parts: int) -> tuple[str, ...]:
            return tuple(f"{role}-{device % parts}" for device in range(telemetry.devices))

        return Decision(
            mode="colocate",
            roles={
                "collect": everyone("rollout", telemetry.rollout_instances),
                "learn": everyone("trainer", telemetry.trainer_ranks),
            },
            prediction=dict(telemetry.seconds),
            reason=(
                f"colocate: {telemetry.devices} devices serve rollout while experience is made and the trainer while it is "
                "learnt from; the prediction is the last iteration's time"
            ),
        )
