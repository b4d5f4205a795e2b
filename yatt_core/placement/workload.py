"""A workload description: cluster, engines, switch costs and the random lengths of samples.

Frozen models in the format of the placement benchmarks' YAML files. Units: seconds, tokens.
"""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field, model_validator

from yatt_core.spec.base import SpecModel

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Schedule = float | tuple[tuple[int, float], ...]
"""A number, or `[[iteration, value], ...]`: linear in between, constant outside."""


def value_at(schedule: Schedule, iteration: int) -> float:
    """Returns the value of a schedule at an iteration (counted from 0)."""
    if isinstance(schedule, float | int):
        return float(schedule)
    if iteration <= schedule[0][0]:
        return float(schedule[0][1])
    for (left, low), (right, high) in itertools.pairwise(schedule):
        if iteration <= right:
            return low + (high - low) * (iteration - left) / (right - left)
    return float(schedule[-1][1])


class DeviceGroup(SpecModel):
    """Devices of one kind."""

    devices: Count
    speed: Positive = 1.0
    """Divides all engine times of the group's instances."""


class Cluster(SpecModel):
    """The devices. An instance is `devices_per_instance` devices of one group; instances are numbered by group."""

    devices_per_instance: Count
    groups: tuple[DeviceGroup, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole_instances(self) -> Cluster:
        for number, group in enumerate(self.groups):
            if group.devices % self.devices_per_instance:
                raise ValueError(
                    f"groups.{number}.devices: {group.devices} is not a multiple of devices_per_instance, "
                    f"{self.devices_per_instance}"
                )
        return self

    @property
    def speeds(self) -> tuple[float, ...]:
        """Speed of each instance."""
        return tuple(g.speed for g in self.groups for _ in range(g.devices // self.devices_per_instance))

    @property
    def devices(self) -> int:
        """Devices of all groups."""
        return sum(group.devices for group in self.groups)


class EngineConstants(SpecModel):
    """The parts of an engine's time; a decode step takes a base time, plus time per sequence and per context token."""

    base_s: Positive
    per_sequence_s: NonNegative
    per_context_token_s: NonNegative
    per_prompt_token_s: NonNegative
    max_concurrent: Count
    prefix_cache: bool = False
    prefill_budget_tokens: Count = 8192
    template_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens of a judge's template around the text to be judged."""


class Engines(SpecModel):
    """One engine per role."""

    rollout: EngineConstants
    judge: EngineConstants


class SwitchCosts(SpecModel):
    """Seconds that an instance is out of service."""

    role_s: NonNegative
    """For taking another role within an iteration."""
    repartition_s: NonNegative
    """For starting an iteration with a different role than the previous iteration."""
    train_s: NonNegative
    """For switching to the trainer and back."""


class TrainingCost(SpecModel):
    """Seconds of training: a fixed part, and a part per token and device."""

    fixed_s: NonNegative
    device_seconds_per_token: NonNegative


class LengthDistribution(SpecModel):
    """The distribution clip(rint(median * exp(sigma * x)), min, max), with x standard normal."""

    median: Schedule
    sigma: Schedule
    min: Count
    max: Count


class ResponseLengths(LengthDistribution):
    """Lengths of responses, whose values of x are correlated within a group.

    rho: correlation of x within a group.
    """

    rho: Annotated[float, Field(ge=0, le=1)] = 0.0


class ToolUse(SpecModel):
    """Tool calls between the turns of a response."""

    max_turns: Count
    mean_wait_s: NonNegative
    output_tokens: Annotated[int, Field(ge=0)]


class SampledPrompts(SpecModel):
    """What an iteration samples."""

    prompts: Count
    group: Count
    prompt: LengthDistribution
    response: ResponseLengths
    judge: LengthDistribution
    judgements: Count = 1
    tools: ToolUse | None = None
    dynamic_sampling: bool = False
    validity: Schedule = 1.0


class Scenario(SpecModel):
    """Everything that defines a simulated run."""

    name: str
    seed: Annotated[int, Field(ge=0)]
    iterations: Count
    control_period_s: Positive = 1.0
    cluster: Cluster
    engines: Engines
    switch: SwitchCosts
    training: TrainingCost
    samples: SampledPrompts
