"""Whether the trainer's devices generate while it does not learn (`placement.trainer: lent`), by what that brings and costs.

Consumes what was measured in the newest committed iteration. Produces the decision with its reason, and the runtime policy that
gives the lent instances their share of what is in progress. Pure. Units: seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from yatt_core.placement.actions import ROLLOUT, Action
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.curve import levelled
from yatt_core.placement.seen import IterationTelemetry, PlacementPolicy, Plan, PoolSeen, RuntimePolicy, Setting

LENT = "lent"
"""The key of a recorded decision that has the instances that are lent; empty if none are."""
LENDING = "lending"
"""The key of a decision's inputs from which that was decided."""


@dataclass(frozen=True, slots=True)
class MeasuredIteration:
    """What an iteration with a lag took.

    learning_s: the trainer's, preparation included.
    idle_s: how long the trainer waited for the experience that was collected beside it.
    busy: the fraction of both for which the instances with devices of their own worked, in the mean.
    lent: whether the trainer's devices generated in `idle_s`.
    """

    learning_s: float
    idle_s: float
    busy: float
    lent: bool


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """A decision. gain_s: seconds that it is expected to save an iteration, costs included; None if nothing was measured."""

    lends: bool
    gain_s: float | None
    reason: str


def decide_lending(own: int, lent: int, measured: MeasuredIteration | None, cost_s: float) -> LendingDecision:
    """Returns whether the trainer's devices are lent once it has learnt.

    What is left to generate then takes the instances with devices of their own `idle_s`, as far as they are busy; with the lent
    ones it is divided among more.

    own, lent: numbers of instances.
    cost_s: what lending takes an instance out of an iteration: becoming ready, and reading what it takes over.
    """
    if measured is None:
        return LendingDecision(
            True, None, "the trainer's devices generate once it has learnt: nothing was measured yet"
        )
    share = lent / own if measured.lent else lent / (own + lent)
    saved = measured.idle_s * measured.busy * share
    gain = saved - cost_s
    known = (
        f"it waited {measured.idle_s:.1f} s after {measured.learning_s:.1f} s of learning, beside engines that were busy for "
        f"{measured.busy:.0%}; lending saves {saved:.1f} s and costs {cost_s:.1f} s"
    )
    if gain > 0.0:
        return LendingDecision(True, gain, f"the trainer's devices generate once it has learnt: {known}")
    return LendingDecision(False, gain, f"the trainer keeps its devices: {known}")


def lending_cost(setting: Setting, responses: int, tokens: float) -> float:
    """Returns the seconds for which lending keeps an instance from generating: it becomes ready, and reads what it takes over.

    That are as many responses as its share of an iteration's, at most as many as it decodes at once, each with half of its
    tokens in the mean.

    responses: number of responses of an iteration.
    tokens: mean length of a response.
    """
    engine = setting.rollout
    taken = min(engine.max_concurrent, responses / len(setting.speeds)) if setting.migrates else 0.0
    return setting.switch.role_s + taken * tokens / 2 * engine.per_prompt_token_s


def lending_setting(setting: Setting, lent: int, decision: LendingDecision, learning_s: float) -> Setting:
    """Returns the setting of a pool whose first `lent` instances are on the trainer's devices.

    learning_s: seconds for which the trainer is expected to learn, on the engines' clock.
    """
    return replace(setting, lent=lent, lent_after_s=learning_s if decision.lends else None)


def lending_to_json(own: int, lent: int, measured: MeasuredIteration | None, cost_s: float) -> dict[str, Any]:
    """Returns the inputs of a decision as the ledger keeps them."""
    return {"own": own, "lent": lent, "measured": None if measured is None else asdict(measured), "cost_s": cost_s}


def lending_again(inputs: Mapping[str, Any]) -> LendingDecision:
    """Repeats a decision from its recorded inputs."""
    measured = inputs["measured"]
    found = None if measured is None else MeasuredIteration(**measured)
    return decide_lending(int(inputs["own"]), int(inputs["lent"]), found, float(inputs["cost_s"]))


class Levelled:
    """Acts as another runtime policy; where that one does nothing, spreads the responses in progress evenly.

    So instances that are lent in the middle of an iteration get their share, although all prompts have been given out.
    """

    def __init__(self, inner: RuntimePolicy) -> None:
        self._inner = inner

    def act(self, moment: Moment, pool: PoolSeen) -> Sequence[Action]:
        """Returns the actions to take now."""
        actions = list(self._inner.act(moment, pool))
        if actions or moment not in (Moment.TICK, Moment.SWITCHED):
            return actions
        return levelled(pool, [i for i in pool.instances if i.role == ROLLOUT and i.ready and not i.leaving])


class LevellingPolicy:
    """Plans as another policy does; the runtime policies of its plans also spread what is in progress (`Levelled`)."""

    def __init__(self, inner: PlacementPolicy) -> None:
        self._inner = inner

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Returns the plan of the other policy."""
        made = self._inner.plan(setting, past, state)
        return replace(made, runtime_policy=Levelled(made.runtime_policy))
