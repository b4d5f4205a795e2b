"""Which role sits on which device."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel


class PlacementSpec(SpecModel):
    """Which role sits on which device while experience is made; to learn, the trainer has all of them."""

    mode: str = Field(default="colocate", pattern=r"^[a-z][a-z0-9_-]*$")
    """`colocate`: rollout and judges take turns on all devices. `split`: fixed parts. `dynamic`: parts that follow the load,
    between iterations and within them. Or the name of a policy of your own, an entry point of the group `yatt.placement`."""
    judges: PositiveInt | None = None
    """Of `split`: instances that judge, the others roll out."""
    control_seconds: PositiveFloat = 1.0
    """Time between two looks at the pool within an iteration; on virtual engines of their clock."""
