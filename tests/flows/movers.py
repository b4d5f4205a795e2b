"""A placement that moves responses as often as it can: among instances that roll out, and away from one that is to judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, HandOver, Take
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import InTurn
from yatt_core.placement.seen import IterationTelemetry, Plan, PoolSeen, Setting
from yatt_core.spec.sections.placement import PlacementSpec

HANDS_OVER = 5
"""Every so many control periods an instance goes over to judge, if another one still rolls out."""


class Moving:
    """Takes sequences from the fullest instance in each control period."""

    def __init__(self) -> None:
        self._periods = 0
        self._in_turn = InTurn()

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the actions to take now."""
        if moment is not Moment.TICK:
            return self._in_turn.act(moment, pool)
        self._periods += 1
        rolling = [i for i in pool.instances if i.role == ROLLOUT and i.ready and not i.leaving and i.outstanding]
        if len(rolling) < 2:
            return []
        fullest = max(rolling, key=lambda i: (i.outstanding, i.index))
        if self._periods % HANDS_OVER == 0:
            return [HandOver(fullest.index, JUDGE, migrate=True)]
        return [Take(fullest.index, (fullest.outstanding + 1) // 2)]


class Mover:
    """Lets all instances roll out, and moves their responses about."""

    def __init__(self, placement: PlacementSpec) -> None:
        """Takes the section `placement` of the spec."""

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Plans the same every time."""
        return Plan(ROLLOUT * len(setting.speeds), Moving(), None, "responses move about")
