"""Placement decisions made once more from their records: by the policy that made them, or by another one.

Consumes recorded placements in order. With the policy in force each decision has to come out exactly as it was recorded.
Another policy plans each iteration with the past that was known then, and both are simulated on the work that really came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flows.placement.inputs import inputs_of, policy_of
from flows.placement.record import RecordedPlacement
from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text
from yatt_core.placement.fitting import fitted
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.records import setting_from_json
from yatt_core.placement.seen import IterationTelemetry, Plan
from yatt_core.placement.simulation.campaign import collect
from yatt_core.spec.sections.placement import PlacementSpec

SPLIT = "split"
NOBODY_JUDGES = "no device judges, so that there is nothing to place"


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A recorded decision, made once more. replayed: roles at the start; none where inputs are lost. why: it is not the same."""

    iteration: int
    mode: str
    recorded: str
    replayed: str | None
    same: bool
    why: tuple[str, ...]
    predicted_s: float | None
    collect_s: float | None


@dataclass(frozen=True, slots=True)
class ComparedDecision:
    """What another policy would have decided, and seconds of collect: measured, and simulated under both. why: some are missing.

    same: roles and state are those on record.
    """

    iteration: int
    recorded: str
    start: str | None
    same: bool
    reason: str
    collect_s: float | None
    recorded_s: float | None
    other_s: float | None
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Another policy against those on record. Totals, in seconds, are over the iterations whose seconds are all known.

    differing: iterations on record under this very policy that it decides otherwise now.
    """

    run: str
    policy: str
    rows: tuple[ComparedDecision, ...]
    iterations: int
    collect_s: float
    recorded_s: float
    other_s: float
    ratio: float | None
    differing: tuple[int, ...]


def replay(placement: RecordedPlacement) -> ReplayedDecision:
    """The decision as its own policy makes it from its recorded inputs."""
    row = placement.row
    plan = None if placement.lost else _planned(placement)
    why = placement.lost if plan is None else _differences(row.decision, plan)
    return ReplayedDecision(
        iteration=placement.iteration,
        mode=row.decision["mode"],
        recorded=row.decision["start"],
        replayed=None if plan is None else plan.roles,
        same=not why,
        why=why,
        predicted_s=row.prediction.get("collect"),
        collect_s=(row.outcome or {}).get("collect_s"),
    )


def _planned(placement: RecordedPlacement) -> Plan:
    return inputs_of(placement.row, placement.telemetry).plan(policy_of(placement.row))


def _differences(decision: Mapping[str, Any], plan: Plan) -> tuple[str, ...]:
    """In words."""
    parts = (("roles", decision["start"], plan.roles), ("state", decision["state"], plan.state))
    return tuple(
        f"{name}: recorded {_shown(recorded)}, now {_shown(now)}" for name, recorded, now in parts if recorded != now
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_policy(text: str, instances: int) -> PlacementSpec:
    """`colocate`, `split:N` (N instances judge), `dynamic`, or the name of a policy of one's own.

    Raises `ConfigurationError` for another form.
    """
    mode, colon, number = text.partition(":")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", mode) or (colon and mode != SPLIT):
        raise ConfigurationError(
            f"--policy {text!r:.80}: right would be colocate, split:N, dynamic, or the name of a policy of your own"
        )
    if mode == SPLIT and not (re.fullmatch(r"[0-9]{1,9}", number) and 0 < int(number) < instances):
        raise ConfigurationError(
            f"--policy {text!r:.80}: how many of {instances} instances judge? Right would be split:N, N from 1 to {instances - 1}"
        )
    return PlacementSpec(mode=mode, judges=int(number) if number else None)


class OtherPolicy:
    """A policy that is led along a run's recorded iterations, with a state and start roles of its own.

    Where it is the policy on record it begins with the recorded state, so that it decides as recorded.
    """

    def __init__(self, wanted: PlacementSpec) -> None:
        self._wanted = wanted
        self._state: Mapping[str, Any] | None = None
        self._roles: dict[int, str] = {}

    def is_recorded(self, placement: RecordedPlacement) -> bool:
        """Whether an iteration was placed by this very policy."""
        spec = PlacementSpec.model_validate(placement.row.inputs["policy"]["placement"])
        return (spec.mode, spec.judges) == (self._wanted.mode, self._wanted.judges)

    def compare(self, placement: RecordedPlacement) -> ComparedDecision:
        """Plans the next iteration, and simulates it under both decisions."""
        row = placement.row
        if self._state is None:
            self._state = row.inputs["state"] if self.is_recorded(placement) else {}
        found = ComparedDecision(
            iteration=placement.iteration,
            recorded=row.decision["start"],
            start=None,
            same=False,
            reason="",
            collect_s=(row.outcome or {}).get("collect_s"),
            recorded_s=None,
            other_s=None,
            why=placement.lost or (() if row.inputs["setting"]["judgements"] else (NOBODY_JUDGES,)),
        )
        if found.why:
            return found
        past = self._past(placement)
        inputs = replace(inputs_of(row, past), state=self._state)
        plan = inputs.plan(find_policy(self._wanted, bool(row.inputs["policy"]["constants_known"])))
        self._state, self._roles[placement.iteration] = plan.state, plan.roles
        recorded = _planned(placement)
        differences = _differences(row.decision, recorded)
        recorded_s, recorded_fails = (None, ()) if differences else _simulated(placement, recorded, placement.telemetry)
        other_s, other_fails = _simulated(placement, plan, past)
        return replace(
            found,
            start=plan.roles,
            same=not _differences(row.decision, plan),
            reason=plan.reason,
            recorded_s=recorded_s,
            other_s=other_s,
            why=(
                *([placement.work_lost] if placement.work_lost else ()),
                *differences,
                *(f"the decision on record: {why}" for why in recorded_fails),
                *(f"{self._wanted.mode}: {why}" for why in other_fails),
            ),
        )

    def _past(self, placement: RecordedPlacement) -> tuple[IterationTelemetry, ...]:
        """The past as recorded, but that it began with the roles that this policy gave."""
        return tuple(
            replace(each.telemetry, roles=self._roles.get(each.iteration, each.telemetry.roles))
            for each in placement.past
            if each.telemetry is not None
        )


def _simulated(
    placement: RecordedPlacement, plan: Plan, past: tuple[IterationTelemetry, ...]
) -> tuple[float | None, tuple[str, ...]]:
    """Seconds of collect that the cost model gives a plan for the work that really came, none where that is not known; and why
    its runtime policy does not come to an end with it, in words.

    Constants that the engines do not tell are fitted to the same work and the past.
    """
    if placement.work is None:
        return None, ()
    work, inputs = placement.work.telemetry, placement.row.inputs
    setting = setting_from_json(inputs["setting"])
    if not inputs["policy"]["constants_known"]:
        setting = fitted(setting, [*past, work])
    try:
        took = collect(setting, plan.roles, plan.runtime_policy, work.waves, past[-1].roles if past else None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a policy raises is that policy's failure
        return None, (f"its runtime policy fails in the simulation: {failure_text(error)}",)
    return took.collect_s, ()


def compare_all(run: str, policy: str, placements: Iterable[RecordedPlacement]) -> Comparison:
    """Leads a policy along placements in order. policy: as for `parse_policy`, whose errors it raises."""
    rows, differing = [], []
    other: OtherPolicy | None = None
    for placement in placements:
        if other is None:
            other = OtherPolicy(parse_policy(policy, len(placement.row.decision["start"])))
        rows.append(other.compare(placement))
        if other.is_recorded(placement) and rows[-1].start is not None and not rows[-1].same:
            differing.append(placement.iteration)
    known = [
        (row.collect_s, row.recorded_s, row.other_s)
        for row in rows
        if row.collect_s is not None and row.recorded_s is not None and row.other_s is not None
    ]
    collect_s, recorded_s, other_s = (sum(column) for column in zip(*known, strict=True)) if known else (0.0, 0.0, 0.0)
    ratio = other_s / recorded_s if recorded_s else None
    return Comparison(run, policy, tuple(rows), len(known), collect_s, recorded_s, other_s, ratio, tuple(differing))
