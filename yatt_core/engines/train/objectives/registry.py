"""The objective that a spec names; a trainer knows objectives only by their protocol."""

from __future__ import annotations

from typing import assert_never

from yatt_core.engines.train.objectives.dpo import Dpo
from yatt_core.engines.train.objectives.kto import Kto
from yatt_core.engines.train.objectives.reward_model import RewardModel
from yatt_core.engines.train.objectives.scores import Objective
from yatt_core.engines.train.objectives.sft import Sft
from yatt_core.engines.train.objectives.simpo import Simpo
from yatt_core.spec.objective import (
    DpoObjective,
    KtoObjective,
    ObjectiveSpec,
    RewardModelObjective,
    SftObjective,
    SimpoObjective,
)


def objective_of(spec: ObjectiveSpec) -> Objective:
    """Returns the objective of a spec."""
    match spec:
        case SftObjective():
            return Sft(spec)
        case DpoObjective():
            return Dpo(spec)
        case SimpoObjective():
            return Simpo(spec)
        case KtoObjective():
            return Kto(spec)
        case RewardModelObjective():
            return RewardModel(spec)
        case _:
            assert_never(spec)
