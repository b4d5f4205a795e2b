"""The advantages that a spec can name, one line each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from yatt_core.algorithms.advantages.batch_std import BatchStdAdvantage
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.advantages.gae import GaeAdvantage
from yatt_core.algorithms.advantages.gdpo import GdpoAdvantage
from yatt_core.algorithms.advantages.group_mean import GroupMeanAdvantage
from yatt_core.algorithms.advantages.group_std import GroupStdAdvantage
from yatt_core.algorithms.advantages.group_tokens import GroupTokensAdvantage
from yatt_core.algorithms.advantages.leave_one_out import LeaveOneOutAdvantage
from yatt_core.algorithms.advantages.max_rl import MaxRlAdvantage
from yatt_core.algorithms.advantages.reinforce_plus_plus import ReinforcePlusPlusAdvantage

AdvantageSpec = Annotated[
    GroupStdAdvantage
    | GroupMeanAdvantage
    | BatchStdAdvantage
    | LeaveOneOutAdvantage
    | MaxRlAdvantage
    | GdpoAdvantage
    | ReinforcePlusPlusAdvantage
    | GroupTokensAdvantage
    | GaeAdvantage
    | CustomAdvantage,
    Field(discriminator="kind"),
]
