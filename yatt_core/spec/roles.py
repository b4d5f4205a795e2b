"""Whose judges take part in a run: those on the pool's devices, and those of others."""

from __future__ import annotations

from yatt_core.spec.rewards.judges import EndpointPart, JudgePart
from yatt_core.spec.run import RunSpec


def device_judges(spec: RunSpec) -> tuple[JudgePart, ...]:
    """The reward parts whose judges run on the pool's devices."""
    return tuple(part for part in spec.rewards.judges if not isinstance(part, EndpointPart))


def endpoint_judges(spec: RunSpec) -> tuple[EndpointPart, ...]:
    """The reward parts whose judges are those of others, behind an address."""
    return tuple(part for part in spec.rewards.judges if isinstance(part, EndpointPart))
