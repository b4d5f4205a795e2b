"""How `dynamic` acts within an iteration: devices follow the samples that are still alive from rollout to judge.

Consumes what may be seen of a pool at a moment; produces actions. Its knobs are chosen by the planner (`dynamic.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, HandOver, Intake, Switch, Take
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import going_over
from yatt_core.placement.seen import InstanceSeen, PoolSeen, Setting

LEAST_SURPLUS = 2
"""Sequences above its fair share from which on an instance gives some away."""
RELATIVE_SURPLUS = 0.25


@dataclass(frozen=True, slots=True)
class Knobs:
    """judges: instances that judge from the start. onset: share of samples still rolled out below which rollout gives capacity
    up. power: rollout's share of the capacity falls as this power of the share alive over the onset; 0: it keeps all.
    backlog: batches of open judgements for each judge, or no more join: late judges then start with full batches; 0: they join
    regardless. level: whether stragglers move to emptier instances. back: whether behind the last rollout all judge, and
    return to rollout for a further wave, or those that are left stay.
    """

    judges: int
    onset: float
    power: float
    backlog: float
    level: bool = True
    back: bool = True


class Curve:
    """Hands instances over to the judge along a curve, evens out stragglers, and shares what waits with those to come."""

    def __init__(self, knobs: Knobs, roles: str, setting: Setting) -> None:
        self._knobs, self._roles = knobs, roles
        self._rolling = sum(v for v, role in zip(setting.speeds, roles, strict=True) if role == ROLLOUT)
        self._rollouts, self._judgements = setting.rollout.max_concurrent, setting.judge.max_concurrent
        self._unit, self._migrates = setting.judgements, setting.migrates
        self._levels = knobs.level and setting.migrates and not setting.tool_tokens

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """What to do now."""
        if moment is Moment.WAVE:
            return self._begin_wave(pool)
        if pool.waiting(ROLLOUT) and all((i.joining or i.role) == JUDGE for i in pool.instances):
            # Who was on the way to judge as the wave began is there now.
            return self._return(pool)
        rolling = [i for i in pool.instances if i.role == ROLLOUT and i.ready and not i.leaving]
        actions: list[Action] = []
        if pool.unrolled == 0:
            judged = any(JUDGE in (i.role, i.joining) for i in pool.instances)
            if pool.waiting(JUDGE) and (self._knobs.back or not judged):
                actions = [going_over(i, JUDGE) for i in rolling]
        else:
            actions = self._hand_over(pool, rolling)
            if self._levels and not actions:
                actions = self._level(pool, rolling)
        return [*actions, *self._share_out(pool, sum(isinstance(action, HandOver | Switch) for action in actions))]

    def _begin_wave(self, pool: PoolSeen) -> list[Action]:
        """Behind a barrier all instances are empty: those that began with rollout return to it."""
        if not self._knobs.back and any(i.role == ROLLOUT and i.ready for i in pool.instances):
            return []
        return self._return(pool)

    def _return(self, pool: PoolSeen) -> list[Action]:
        """Those that began with rollout go back to it, as far as they have nothing to do."""
        return [
            Switch(i.index, ROLLOUT)
            for i, role in zip(pool.instances, self._roles, strict=True)
            if i.ready and not i.outstanding and i.role != role == ROLLOUT
        ]

    def _hand_over(self, pool: PoolSeen, rolling: list[InstanceSeen]) -> list[Action]:
        """Slow and nearly empty instances go first; never the last one, nor more than the others can take in for."""
        if not pool.waiting(JUDGE):
            return []
        capacity, target = sum(i.speed for i in rolling), self._target(pool)
        held = sum(i.outstanding for i in rolling) + pool.waiting(ROLLOUT)
        staying, wanted = len(rolling), self._wanted(pool)
        actions: list[Action] = []
        for i in sorted(rolling, key=lambda i: (i.speed, i.outstanding, i.index)):
            if staying == 1 or capacity - i.speed < target or (staying - 1) * self._rollouts < held:
                break
            if len(actions) >= wanted:
                break
            staying, capacity = staying - 1, capacity - i.speed
            actions.append(HandOver(i.index, JUDGE, self._migrates) if i.outstanding else Switch(i.index, JUDGE))
        return actions

    def _target(self, pool: PoolSeen) -> float:
        """Capacity that rollout keeps at this share of samples alive."""
        alive = min(1.0, pool.unrolled / pool.submitted / self._knobs.onset)
        return self._rolling * math.pow(alive, self._knobs.power) - 1e-9

    def _wanted(self, pool: PoolSeen) -> float:
        """Judges that the open judgements would fill, beyond those that serve or are on their way."""
        if not self._knobs.backlog:
            return math.inf
        serving = [i for i in pool.instances if i.role == JUDGE and i.ready]
        coming = sum(JUDGE in (i.joining, i.leaving) for i in pool.instances)
        judgements = pool.waiting(JUDGE) + sum(i.outstanding for i in serving)
        return judgements / (self._knobs.backlog * self._judgements) - len(serving) - coming

    def _level(self, pool: PoolSeen, rolling: list[InstanceSeen]) -> list[Action]:
        """Whoever has far more than its share gives its newest away, once nothing waits any more."""
        if pool.waiting(ROLLOUT):
            return []
        held, capacity = sum(i.outstanding for i in rolling), sum(i.speed for i in rolling)
        actions: list[Action] = []
        for i in rolling:
            surplus = i.outstanding - (share := math.ceil(held * i.speed / capacity))
            if surplus >= max(LEAST_SURPLUS, RELATIVE_SURPLUS * share):
                actions.append(Take(i.index, surplus))
        return actions

    def _share_out(self, pool: PoolSeen, leaving: int) -> list[Action]:
        """While judges are on their way, those that serve leave them their share of what waits."""
        judges = [i for i in pool.instances if i.role == JUDGE and i.ready]
        coming = leaving + sum(JUDGE in (i.joining, i.leaving) for i in pool.instances)
        limit = None
        if judges and coming:
            judgements = pool.waiting(JUDGE) + sum(i.outstanding for i in judges)
            limit = max(self._unit, math.ceil(judgements / (len(judges) + coming)))
            limit = limit if limit < self._judgements else None
        return [Intake(i.index, limit) for i in judges if i.intake != limit]
