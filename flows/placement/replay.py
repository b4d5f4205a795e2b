"""Replays recorded placement decisions with the policy that made them, or compares them with another policy.

Consumes recorded placements in order. The original policy must reproduce each recorded decision exactly. Another policy
plans each iteration from the past known at that time; both decisions are simulated on the actual work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from db.write.records import DecisionRow
from flows.placement.inputs import inputs_of, policy_of
from flows.placement.record import RecordedPlacement
from yatt_core.errors import ConfigurationError
from yatt_core.installed import failure_text
from yatt_core.placement.actions import KEEPS, LENDS
from yatt_core.placement.fitting import fitted
from yatt_core.placement.lending import LENDING, LENT, Levelled, lending_again
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.records import setting_from_json
from yatt_core.placement.seen import IterationTelemetry, Plan, RuntimePolicy, Setting
from yatt_core.placement.simulation.campaign import collect
from yatt_core.spec.sections.placement import PlacementSpec

SPLIT = "split"
NO_JUDGE = "no judge runs on a device, so there is nothing to place"


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A recorded decision and its replay.

    recorded: the recorded roles at the start.
    replayed: the replayed roles at the start; None if inputs are lost.
    why: the differences, or the lost inputs; empty if the decisions are the same.
    """

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
    """What another policy would have decided.

    recorded, start: roles at the start, as recorded and as the other policy chooses them.
    same: the other policy's roles and state equal the recorded ones.
    reason: the other policy's own explanation.
    collect_s: measured seconds of `collect`.
    recorded_s, other_s: simulated seconds of `collect` under the recorded and the other decision.
    why: reasons for missing values.
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
class PolicyComparison:
    """A comparison of another policy with the recorded decisions.

    iterations: number of iterations whose seconds are all known; the totals are over these.
    collect_s, recorded_s, other_s: total seconds.
    ratio: other_s / recorded_s.
    differing: iterations recorded under the same policy for which it would now decide differently.
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
    """Repeats a decision with its own policy and recorded inputs."""
    row = placement.row
    plan = None if placement.lost else _planned(placement)
    why = placement.lost if plan is None else (*_differences(row.decision, plan), *_lent_otherwise(row))
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
    """Describes how a plan differs from a recorded decision."""
    parts = (("roles", decision["start"], plan.roles), ("state", decision["state"], plan.state))
    return tuple(
        f"{name}: recorded {_shown(recorded)}, now {_shown(now)}" for name, recorded, now in parts if recorded != now
    )


def _lent_otherwise(row: DecisionRow) -> tuple[str, ...]:
    """Describes how lending the trainer's devices would now be decided otherwise than recorded."""
    if LENDING not in row.inputs:
        return ()
    recorded = bool(row.decision[LENT])
    now = lending_again(row.inputs[LENDING]).lends
    return () if recorded == now else (f"lends the trainer's devices: recorded {recorded}, now {now}",)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def parse_policy(text: str, instances: int) -> PlacementSpec:
    """Parses `colocate`, `split:N` (N instances judge), `dynamic`, or the name of a custom policy.

    Raises `ConfigurationError` for any other form.
    """
    mode, colon, number = text.partition(":")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", mode) or (colon and mode != SPLIT):
        raise ConfigurationError(
            f"--policy {text!r:.80}: expected colocate, split:N, dynamic, or the name of your own policy"
        )
    if mode == SPLIT and not (re.fullmatch(r"[0-9]{1,9}", number) and 0 < int(number) < instances):
        raise ConfigurationError(
            f"--policy {text!r:.80}: expected split:N, with N from 1 to {instances - 1} of {instances} instances"
        )
    return PlacementSpec(mode=mode, judges=int(number) if number else None)


class OtherPolicy:
    """A policy that is applied to a run's recorded iterations in order, with its own state and roles.

    If it is the recorded policy, it begins with the recorded state, so it must decide as recorded.
    """

    def __init__(self, wanted: PlacementSpec) -> None:
        self._wanted = wanted
        self._state: Mapping[str, Any] | None = None
        self._roles: dict[int, str] = {}

    def is_recorded(self, placement: RecordedPlacement) -> bool:
        """Returns True if the recorded decision was made by this same policy."""
        spec = PlacementSpec.model_validate(placement.row.inputs["policy"]["placement"])
        return (spec.mode, spec.judges) == (self._wanted.mode, self._wanted.judges)

    def compare(self, placement: RecordedPlacement) -> ComparedDecision:
        """Plans the next iteration and simulates it under both decisions."""
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
            why=placement.lost or (() if row.inputs["setting"]["judgements"] else (NO_JUDGE,)),
        )
        if found.why:
            return found
        past = self._past(placement)
        inputs = replace(inputs_of(row, past), state=self._state)
        plan = inputs.plan(find_policy(self._wanted, bool(row.inputs["policy"]["constants_known"])))
        self._state = plan.state
        self._roles[placement.iteration] = plan.roles
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
                *(f"the recorded decision: {why}" for why in recorded_fails),
                *(f"{self._wanted.mode}: {why}" for why in other_fails),
            ),
        )

    def _past(self, placement: RecordedPlacement) -> tuple[IterationTelemetry, ...]:
        """Returns the recorded past, with the start roles that this policy would have chosen."""
        return tuple(
            replace(each.telemetry, roles=self._roles.get(each.iteration, each.telemetry.roles))
            for each in placement.past
            if each.telemetry is not None
        )


def _simulated(
    placement: RecordedPlacement, plan: Plan, past: tuple[IterationTelemetry, ...]
) -> tuple[float | None, tuple[str, ...]]:
    """Simulates a plan on the actual work; returns the seconds of `collect`, and the reasons if the simulation failed.

    The seconds are None if the work is not known or the simulation failed. If the engines do not report their time
    constants, these are fitted to the same work and the past.
    """
    if placement.work is None:
        return None, ()
    work = placement.work.telemetry
    inputs = placement.row.inputs
    setting = lent_as_recorded(setting_from_json(inputs["setting"]), placement.work.actions)
    if not inputs["policy"]["constants_known"]:
        setting = fitted(setting, [*past, work])
    try:
        took = collect(
            setting=setting,
            roles=plan.roles,
            runtime_policy=_levelling(placement.row, setting, plan.runtime_policy),
            waves=work.waves,
            before=past[-1].roles if past else None,
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's policy may raise anything
        return None, (f"the runtime policy failed in the simulation: {failure_text(error)}",)
    return took.collect_s, ()


def lent_as_recorded(setting: Setting, actions: Iterable[Mapping[str, Any]]) -> Setting:
    """Returns the setting in which lent instances join when they did, in place of when the plan expected it."""
    if not setting.lent:
        return setting
    listed = list(actions)
    joined = [line["t"] for line in listed if line["do"] == LENDS]
    kept = any(line["do"] == KEEPS for line in listed)
    return replace(setting, lent_after_s=max(joined) if joined else None if kept else 0.0)


def _levelling(row: DecisionRow, setting: Setting, runtime_policy: RuntimePolicy) -> RuntimePolicy:
    """Returns the runtime policy as it acts in a run: lent instances get their share of what is in progress.

    A record of an earlier version lends devices, but its setting does not say so: its pool is simulated as it was then.
    """
    levels = setting.lent and row.decision.get(LENT) and setting.migrates
    return Levelled(runtime_policy) if levels else runtime_policy


def compare_all(run: str, policy: str, placements: Iterable[RecordedPlacement]) -> PolicyComparison:
    """Compares a policy with recorded placements, in order.

    policy: text for `parse_policy`, whose errors are raised.
    """
    rows = []
    differing = []
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
    return PolicyComparison(
        run=run,
        policy=policy,
        rows=tuple(rows),
        iterations=len(known),
        collect_s=collect_s,
        recorded_s=recorded_s,
        other_s=other_s,
        ratio=ratio,
        differing=tuple(differing),
    )
