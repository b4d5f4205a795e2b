"""The placements that ignore the load: all roles in turn on all instances, and fixed partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, HandOver, Switch
from yatt_core.placement.moments import Moment
from yatt_core.placement.seen import InstanceSeen, IterationTelemetry, Plan, PoolSeen, Setting


def going_over(instance: InstanceSeen, role: str) -> Action:
    """Returns the action that moves a finished instance to another role.

    The pool may know that the instance's last sequences have ended before the instance itself reports it; the switch
    then waits for this report.
    """
    return HandOver(instance.index, role, False) if instance.outstanding else Switch(instance.index, role)


class InTurn:
    """All instances roll out; after the wave's last rollout all judge; before the next wave all return to rollout."""

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Switches all instances at once."""
        role = {Moment.WAVE: ROLLOUT, Moment.DRAINED: JUDGE}.get(moment)
        return (
            [going_over(i, role) for i in pool.instances if i.ready and not i.leaving and i.role != role]
            if role
            else []
        )


class Hold:
    """Every instance keeps its role."""

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Does nothing."""
        return []


class ColocatePool:
    """Gives every role all instances in turn (arXiv 2508.07970: full colocation)."""

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Plans for all instances to roll out first."""
        roles = ROLLOUT * len(setting.speeds)
        if not setting.judgements:
            return Plan(roles, Hold(), _last(past), "all instances roll out: no judge runs on a device")
        return Plan(roles, InTurn(), _last(past), "all instances take the roles in turn")


class SplitPool:
    """Lets the last instances judge and all others roll out, always."""

    def __init__(self, judges: int) -> None:
        self._judges = judges

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Plans the same partition every time."""
        roles = ROLLOUT * (len(setting.speeds) - self._judges) + JUDGE * self._judges
        return Plan(roles, Hold(), _last(past), f"the last {self._judges} instances always judge")


def _last(past: Sequence[IterationTelemetry]) -> float | None:
    return past[-1].collect_s if past else None
