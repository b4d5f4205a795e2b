"""Whether the trainer's devices generate while it does not learn, as an iteration's placement decides and records it.

Consumes the ledger: the phases, metrics and decision of the newest committed iteration. Produces the decision, and the inputs
from which it is repeated (`yatt_core.placement.lending`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.driver.context import RunContext
from yatt_core.dispatch.pool import pool_setting
from yatt_core.placement.lending import (
    LENDING,
    LENT,
    LendingDecision,
    MeasuredIteration,
    lending_again,
    lending_cost,
    lending_setting,
    lending_to_json,
)
from yatt_core.placement.seen import Setting
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout

AHEAD = "collect_ahead"
"""The phase in which the driver waits for experience that is collected beside the trainer."""
LENGTH = "length/response_mean"


def lending_in(context: RunContext, iteration: int) -> tuple[LendingDecision | None, dict[str, Any]]:
    """Returns whether the trainer's devices are lent in an iteration, and the inputs of that, as the ledger keeps them.

    None and nothing if the spec never lends them. A decision that is recorded is repeated from its own inputs.
    """
    spec = context.spec
    lent = len(spec.lent_instances)
    if not lent:
        return None, {}
    earlier = context.ledger.records.decisions(context.run, context.branch, iteration)
    if earlier and LENDING in earlier[-1].inputs:
        inputs: Mapping[str, Any] = earlier[-1].inputs[LENDING]
    else:
        inputs = _inputs(context, iteration, lent)
    return lending_again(inputs), {LENDING: dict(inputs)}


def lending_pool(spec: RunSpec, lending: LendingDecision | None, inputs: Mapping[str, Any]) -> Setting:
    """Returns the pool as a policy sees it: instances that are lent join once the trainer has learnt as long as it did last.

    lending, inputs: of the decision (`lending_in`). Before anything was measured the trainer is expected to take no time.
    """
    setting = pool_setting(spec)
    if lending is None:
        return setting
    of_lending = inputs[LENDING]
    measured = of_lending["measured"]
    learning_s = 0.0 if measured is None else float(measured["learning_s"]) * _clock_factor(spec)
    return lending_setting(setting, int(of_lending["lent"]), lending, learning_s)


def _inputs(context: RunContext, iteration: int, lent: int) -> dict[str, Any]:
    spec = context.spec
    own = spec.engine_instances - lent
    measured = None
    tokens = 0.0
    newest = min(iteration - 1, context.committed_iteration)
    commit = context.ledger.commits.at(context.run, newest)
    if commit is not None:
        seconds = context.ledger.phases.seconds(commit.run, commit.branch, newest)
        figures = context.ledger.metrics.at(commit.run, commit.branch, newest)
        decisions = context.ledger.records.decisions(commit.run, commit.branch, newest)
        tokens = figures.get(LENGTH, 0.0)
        if AHEAD in seconds and decisions:
            measured = _measured(spec, seconds, figures, bool(decisions[-1].decision.get(LENT)))
    responses = spec.data.prompts_per_iteration * spec.rollout.samples_per_prompt
    cost_s = lending_cost(pool_setting(spec), responses, tokens) / _clock_factor(spec)
    return lending_to_json(own=own, lent=lent, measured=measured, cost_s=cost_s)


def _measured(
    spec: RunSpec, seconds: Mapping[str, float], figures: Mapping[str, float], lent: bool
) -> MeasuredIteration:
    """Returns what an iteration took.

    seconds: of its phases.
    figures: its metrics.
    lent: whether the trainer's devices generated.
    """
    own = [number for number in range(spec.engine_instances) if number not in spec.lent_instances]
    roles = ("rollout_seconds", "judge_seconds")
    working = sum(figures.get(f"devices/{number}/{role}", 0.0) for number in own for role in roles)
    learning = seconds.get("prepare", 0.0) + seconds.get("learn", 0.0)
    whole = learning + seconds[AHEAD]
    busy = working / _clock_factor(spec) / len(own) / whole if whole > 0.0 else 0.0
    return MeasuredIteration(learning_s=learning, idle_s=seconds[AHEAD], busy=min(1.0, busy), lent=lent)


def _clock_factor(spec: RunSpec) -> float:
    """Returns how many of the engines' seconds pass in a second of the driver's."""
    engine = spec.rollout.engine
    return engine.clock_factor if isinstance(engine, VirtualRollout) else 1.0
