"""How many controllers collect, and where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from yatt_core.spec.base import SpecModel


class ControllerSpec(SpecModel):
    """The parallel controllers; their number never changes a result."""

    count: int = Field(default=2, ge=1, le=4096)
    """Number of controllers, one process each."""
    per: Literal["run", "node"] = "run"
    """`run`: `count` is the total. `node`: `count` controllers on each live node; nodes that join or leave are
    taken into account from the next iteration on."""
    bytes_in_flight: PositiveInt = 256 << 20
    """Maximum bytes of requests and expected responses that a controller has in flight; a decode batch above the
    limit is sent alone."""
