"""The length penalties that a spec can name, one line each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from yatt_core.algorithms.shaping.linear import LinearPenalty
from yatt_core.algorithms.shaping.overlong import OverlongPenalty

LengthPenaltySpec = Annotated[OverlongPenalty | LinearPenalty, Field(discriminator="kind")]
