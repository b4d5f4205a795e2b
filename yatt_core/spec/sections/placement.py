"""Which role runs on which device."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel


class PlacementSpec(SpecModel):
    """Which role runs on which device while experience is collected; for the update, the trainer uses all devices."""

    mode: str = Field(default="colocate", pattern=r"^[a-z][a-z0-9_-]*$")
    """`colocate`: rollout and judges take turns on all devices. `split`: a fixed split of the devices. `dynamic`:
    a split that follows the load, between and within iterations. Or the name of a custom policy, an entry point
    of the group `yatt.placement`."""
    judges: PositiveInt | None = None
    """With `split`: number of instances that judge; the others generate."""
    control_seconds: PositiveFloat = 1.0
    """Interval between two decisions about the pool within an iteration; on virtual engines, in their clock."""
