"""`dynamic`: plans an iteration by replaying recent iterations under many runtime policies and choosing the best one.

Consumes the facts of the pool and the telemetry of the last `LOOKS_BACK` iterations. Produces the roles at the
start, the parameters of the curve to follow within the iteration, the predicted seconds and the reason. The
number of initial judges changes only for a gain beyond the hysteresis, except after the first iteration, which
was planned without telemetry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from yatt_core.placement.fitting import fitted
from yatt_core.placement.policies.curve import CurvePolicy, Knobs
from yatt_core.placement.policies.expected import LOOKS_BACK
from yatt_core.placement.policies.search import CandidateResult, Search, roles_of
from yatt_core.placement.seen import IterationTelemetry, Plan, Setting
from yatt_core.placement.workload import SwitchCosts

HYSTERESIS = 0.015


class Dynamic:
    """The policy.

    fit: whether to fit the engines' time constants to telemetry instead of using the setting's constants.
    """

    def __init__(self, fit: bool = False) -> None:
        self._fit = fit

    def plan(self, setting: Setting, past: Sequence[IterationTelemetry], state: dict[str, Any]) -> Plan:
        """Returns the plan that is best on worlds resembling the last iterations.

        state: the parameters currently in force, whether telemetry was used to choose them and, if constants are
            fitted, the last measured costs of switching.
        """
        # With a tail an iteration may draw nothing: enough groups were complete before it.
        recent = [iteration for iteration in past if iteration.waves][-LOOKS_BACK:]
        if self._fit:
            held = SwitchCosts(**state["switch"]) if "switch" in state else setting.switch
            setting = fitted(replace(setting, switch=held), recent)
        search = Search(setting, recent, before=past[-1].roles if past else None)
        outcomes = search.best(Knobs(**state["knobs"]) if state else None)
        best = chosen(outcomes, state["knobs"]["judges"] if state and state["informed"] else None)
        roles = roles_of(setting.speeds, best.knobs.judges, setting.lent)
        return Plan(
            roles=roles,
            runtime_policy=CurvePolicy(best.knobs, roles, setting),
            prediction_s=best.seconds if recent else None,
            reason=_reason(
                best=best,
                instances=len(setting.speeds),
                worlds=len(search.worlds),
                replays=search.replays,
                informed=bool(recent),
            ),
            state={
                "knobs": asdict(best.knobs),
                "informed": bool(recent),
                **({"switch": setting.switch.model_dump()} if self._fit else {}),
            },
        )


def chosen(outcomes: Sequence[CandidateResult], judges: int | None) -> CandidateResult:
    """Returns the best outcome (the first), or the best with this number of judges if it is within the hysteresis."""
    best = outcomes[0]
    kept = next((outcome for outcome in outcomes if outcome.knobs.judges == judges), best)
    return kept if kept.loss <= best.loss + math.log1p(HYSTERESIS) else best


def _reason(best: CandidateResult, instances: int, worlds: int, replays: int, informed: bool) -> str:
    knobs = best.knobs
    batches = f", one for every {knobs.backlog:g} batches of open judgements" if knobs.backlog else ""
    return (
        f"{knobs.judges} of {instances} instances judge from the start; others join once {knobs.onset:g} of the samples are left "
        f"in rollout{batches}, rollout's share falling with power {knobs.power:g}: {best.seconds:.1f} s over {worlds} "
        f"{'worlds like the last iterations' if informed else 'assumed worlds'}, the best of {replays} replays"
    )
