"""How `dynamic` acts within an iteration: devices move from rollout to judge as fewer samples remain to be rolled out.

Consumes the visible state of a pool at a moment; produces actions. The planner (`dynamic.py`) chooses its
parameters.
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
"""Minimum number of sequences above its fair share at which an instance gives some away."""
RELATIVE_SURPLUS = 0.25


@dataclass(frozen=True, slots=True)
class Knobs:
    """The parameters of the curve.

    judges: instances that judge from the start.
    onset: fraction of samples still in rollout below which rollout gives up capacity.
    power: rollout keeps the fraction (samples in rollout / onset), raised to this power, of its capacity; 0 keeps
        all of it.
    backlog: number of batches of open judgements per judge that are required before another judge joins, so that
        late judges start with full batches; 0 disables the condition.
    level: whether sequences are moved from overloaded instances to emptier ones.
    back: whether all instances judge after a wave's last rollout and return to rollout for the next wave; if false,
        the instances that are still in rollout stay there.
    """

    judges: int
    onset: float
    power: float
    backlog: float
    level: bool = True
    back: bool = True


def levelled(pool: PoolSeen, rolling: Sequence[InstanceSeen]) -> list[Action]:
    """Returns what takes the newest sequences from instances with far more than their share; nothing while any wait.

    rolling: the instances that roll out.
    """
    if pool.waiting(ROLLOUT):
        return []
    held = sum(i.outstanding for i in rolling)
    capacity = sum(i.speed for i in rolling)
    actions: list[Action] = []
    for i in rolling:
        surplus = i.outstanding - (share := math.ceil(held * i.speed / capacity))
        if surplus >= max(LEAST_SURPLUS, RELATIVE_SURPLUS * share):
            actions.append(Take(i.index, surplus))
    return actions


class CurvePolicy:
    """Hands instances over to judging along a curve, balances the remaining rollouts, and saves work for new judges."""

    def __init__(self, knobs: Knobs, roles: str, setting: Setting) -> None:
        self._knobs = knobs
        self._roles = roles
        self._rolling = sum(v for v, role in zip(setting.speeds, roles, strict=True) if role == ROLLOUT)
        self._lent = setting.lent
        # Sequences that have been moved before may be any part of what an instance holds.
        self._rollouts = min(setting.rollout.max_concurrent, setting.moved or setting.rollout.max_concurrent)
        self._judgements = setting.judge.max_concurrent
        self._unit = setting.judgements
        self._migrates = setting.migrates
        self._levels = knobs.level and setting.migrates and not setting.tool_tokens

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the actions to take now."""
        if moment is Moment.WAVE:
            return self._begin_wave(pool)
        if pool.waiting(ROLLOUT) and all((i.joining or i.role) == JUDGE for i in pool.instances):
            # Instances that were switching to judge when the wave began have arrived.
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
                actions = levelled(pool, rolling)
        return [*actions, *self._share_out(pool, sum(isinstance(action, HandOver | Switch) for action in actions))]

    def _begin_wave(self, pool: PoolSeen) -> list[Action]:
        """Switches the instances that started with rollout back to it; all of them are empty when a wave begins."""
        if not self._knobs.back and any(i.role == ROLLOUT and i.ready for i in pool.instances):
            return []
        return self._return(pool)

    def _return(self, pool: PoolSeen) -> list[Action]:
        """Switches idle instances that started in rollout back to it."""
        return [
            Switch(i.index, ROLLOUT)
            for i, role in zip(pool.instances, self._roles, strict=True)
            if i.ready and not i.outstanding and i.role != role == ROLLOUT
        ]

    def _hand_over(self, pool: PoolSeen, rolling: list[InstanceSeen]) -> list[Action]:
        """Hands instances over to judging, slow and nearly empty ones first.

        One instance always stays in rollout, and those that stay must have room for the sequences to be moved.
        """
        if not pool.waiting(JUDGE):
            return []
        capacity = sum(i.speed for i in rolling)
        target = self._target(pool)
        held = sum(i.outstanding for i in rolling) + pool.waiting(ROLLOUT)
        staying = len(rolling)
        wanted = self._wanted(pool)
        actions: list[Action] = []
        for i in sorted(rolling, key=lambda i: (i.speed, i.outstanding, i.index)):
            if staying == 1 or capacity - i.speed < target or (staying - 1) * self._rollouts < held:
                break
            if len(actions) >= wanted:
                break
            staying = staying - 1
            capacity = capacity - i.speed
            actions.append(HandOver(i.index, JUDGE, self._migrates) if i.outstanding else Switch(i.index, JUDGE))
        return actions

    def _target(self, pool: PoolSeen) -> float:
        """Returns the capacity that rollout keeps at the current fraction of samples in rollout.

        Instances on whose devices the trainer works do not count.
        """
        alive = min(1.0, pool.unrolled / pool.submitted / self._knobs.onset)
        on_trainer = (i for i in pool.instances[: self._lent] if i.role == ROLLOUT)
        learning = sum(i.speed for i in on_trainer if not (i.ready or i.leaving or i.joining))
        return (self._rolling - learning) * math.pow(alive, self._knobs.power) - 1e-9

    def _wanted(self, pool: PoolSeen) -> float:
        """Returns how many judges the open judgements could fill in addition to those serving or on their way."""
        if not self._knobs.backlog:
            return math.inf
        serving = [i for i in pool.instances if i.role == JUDGE and i.ready]
        coming = sum(JUDGE in (i.joining, i.leaving) for i in pool.instances)
        judgements = pool.waiting(JUDGE) + sum(i.outstanding for i in serving)
        return judgements / (self._knobs.backlog * self._judgements) - len(serving) - coming

    def _share_out(self, pool: PoolSeen, leaving: int) -> list[Action]:
        """Limits the intake of serving judges to leave a share of the queue to judges that are still on their way."""
        judges = [i for i in pool.instances if i.role == JUDGE and i.ready]
        coming = leaving + sum(JUDGE in (i.joining, i.leaving) for i in pool.instances)
        limit = None
        if judges and coming:
            judgements = pool.waiting(JUDGE) + sum(i.outstanding for i in judges)
            limit = max(self._unit, math.ceil(judgements / (len(judges) + coming)))
            limit = limit if limit < self._judgements else None
        return [Intake(i.index, limit) for i in judges if i.intake != limit]
