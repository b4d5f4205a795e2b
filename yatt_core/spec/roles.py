"""The judges of a run, by where they run: on the pool's devices, or at third-party endpoints."""

from __future__ import annotations

from yatt_core.spec.rewards.judges import EndpointPart, JudgePart
from yatt_core.spec.run import RunSpec


def device_judges(spec: RunSpec) -> tuple[JudgePart, ...]:
    """Returns the reward parts whose judges run on the pool's devices."""
    return tuple(part for part in spec.rewards.judges if not isinstance(part, EndpointPart))


def endpoint_judges(spec: RunSpec) -> tuple[EndpointPart, ...]:
    """Returns the reward parts whose judges are third-party endpoints."""
    return tuple(part for part in spec.rewards.judges if isinstance(part, EndpointPart))
