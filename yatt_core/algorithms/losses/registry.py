"""The losses that a spec can name, one line each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from yatt_core.algorithms.losses.cispo import CispoLoss
from yatt_core.algorithms.losses.clip import ClipLoss
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.losses.dppo import DppoLoss
from yatt_core.algorithms.losses.dual_clip import DualClipLoss
from yatt_core.algorithms.losses.gmpo import GmpoLoss
from yatt_core.algorithms.losses.gspo import GspoLoss
from yatt_core.algorithms.losses.sapo import SapoLoss

LossSpec = Annotated[
    ClipLoss | DualClipLoss | GspoLoss | GmpoLoss | CispoLoss | DppoLoss | SapoLoss | CustomLoss,
    Field(discriminator="kind"),
]
