"""Explains an iteration's placement and its outcome, for `yatt placement explain` and `yatt placement gantt`.

Consumes a recorded placement; produces plain values. Times are seconds of `collect` on the engines' clock, sizes are
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flows.branching.restore_points import ranges
from flows.placement.disks import Disk
from flows.placement.record import PastWork, RecordedPlacement
from flows.placement.seats import SeatSpan
from flows.placement.work_files import RecordedWork
from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import JUDGE, LENDS, ROLLOUT
from yatt_core.placement.lending import LENDING, LENT
from yatt_core.placement.occupancy import (
    Change,
    RoleSpan,
    RoleTime,
    busy_shares,
    changes_of,
    idle_fraction,
    role_times,
    spans_of,
    with_trainer,
)
from yatt_core.placement.seen import IterationTelemetry
from yatt_core.spec.sections.placement import APART


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Statistics of the lengths of responses or judgements, in tokens.

    tokens: sum of the lengths.
    """

    tokens: int
    p50: int
    p95: int
    longest: int


@dataclass(frozen=True, slots=True)
class SeenWork:
    """A past iteration among the policy's inputs.

    lost: the reason if its file is missing or has changed, in which case samples and lengths are None; else empty.
    """

    run: str
    branch: int
    iteration: int
    samples: int | None
    responses: LengthStatistics | None
    judgements: LengthStatistics | None
    lost: str


@dataclass(frozen=True, slots=True)
class RoleUse:
    """A role's use of the devices.

    role: empty for time spent switching roles.
    tokens_per_s: tokens per second of `collect`.
    """

    role: str
    device_s: float
    busy_s: float
    idle_fraction: float
    tokens: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and its outcome.

    Fields are None or empty if they are not known yet, or not recorded because no judge runs on a device.

    rolling, judging: instances with that role at the start.
    trainer: which devices the trainer has, in words; empty if it works in turn with the engines, or beside them on theirs.
    seen: the past iterations among the policy's inputs.
    lost: the files that are missing or changed, and why.
    state_before, state: the policy's state before and after the decision.
    error: relative error of the prediction, (predicted - actual) / actual.
    seconds: seconds by phase, on the driver's clock.
    moves: number of actions by kind, other than changes of role.
    seats: where the actors were.
    disks: the disks with the run's folder; empty if all nodes shared one.
    """

    run: str
    branch: int
    iteration: int
    committed: bool
    mode: str
    rolling: tuple[int, ...]
    judging: tuple[int, ...]
    trainer: str
    reason: str
    seen: tuple[SeenWork, ...]
    lost: tuple[str, ...]
    state_before: Mapping[str, Any]
    state: Mapping[str, Any]
    predicted_s: float | None
    collect_s: float | None
    error: float | None
    judging_s: float | None
    seconds: Mapping[str, float]
    changes: tuple[Change, ...]
    moves: Mapping[str, int]
    roles: tuple[RoleUse, ...]
    idle_fraction: float | None
    seats: tuple[SeatSpan, ...]
    disks: tuple[Disk, ...]


@dataclass(frozen=True, slots=True)
class Gantt:
    """The roles of each instance over time.

    busy: the busy fraction of an instance's time in a role, by `INSTANCE/ROLE`.
    phases: seconds of the iteration's phases, on the driver's clock.
    """

    run: str
    iteration: int
    mode: str
    instances: int
    collect_s: float
    idle_fraction: float
    spans: tuple[RoleSpan, ...]
    busy: Mapping[str, float]
    roles: tuple[RoleUse, ...]
    phases: Mapping[str, float]


def explain(
    placement: RecordedPlacement, seats: tuple[SeatSpan, ...] = (), disks: tuple[Disk, ...] = ()
) -> Explanation:
    """Returns the explanation of one iteration's placement."""
    row = placement.row
    outcome = placement.row.outcome or {}
    start: str = row.decision["start"]
    predicted = row.prediction.get("collect")
    took = outcome.get("collect_s")
    changes, moves, times = _within(placement)
    return Explanation(
        run=placement.run,
        branch=placement.branch,
        iteration=placement.iteration,
        committed=placement.committed,
        mode=row.decision["mode"],
        rolling=_instances(start, ROLLOUT),
        judging=_instances(start, JUDGE),
        trainer=_trainer(placement),
        reason=row.reason,
        seen=tuple(_seen(each) for each in placement.past),
        lost=(*placement.lost, *([placement.work_lost] if placement.work_lost else ())),
        state_before=row.inputs["state"],
        state=row.decision["state"],
        predicted_s=predicted,
        collect_s=took,
        error=(predicted - took) / took if predicted and took else None,
        judging_s=outcome.get("judging_s"),
        seconds=outcome.get("seconds", {}),
        changes=changes,
        moves=moves,
        roles=tuple(_use(time, took or 0.0) for time in times),
        idle_fraction=idle_fraction(times) if times else None,
        seats=seats,
        disks=disks,
    )


def gantt_of(placement: RecordedPlacement) -> Gantt:
    """Returns the role spans of an iteration. Raises `ConfigurationError` if its work is not known, with the reason."""
    work = placement.work
    row = placement.row
    if work is None:
        why = placement.work_lost
        if not why:
            why = "no judge runs on a device" if placement.committed else "the iteration is still in progress"
        raise ConfigurationError(
            f"run {placement.run}: there is no recorded work of iteration {placement.iteration} to draw: {why}"
        )
    _, spans = _changes_and_spans(placement, work)
    usage = work.telemetry.usage
    times = role_times(spans, work.telemetry.usage)
    return Gantt(
        run=placement.run,
        iteration=placement.iteration,
        mode=row.decision["mode"],
        instances=len(work.telemetry.roles),
        collect_s=work.telemetry.collect_s,
        idle_fraction=idle_fraction(times),
        spans=tuple(spans),
        busy={f"{index}/{role}": share for (index, role), share in busy_shares(spans, usage).items() if role},
        roles=tuple(_use(time, work.telemetry.collect_s) for time in times),
        phases=(row.outcome or {}).get("seconds", {}),
    )


def _changes_and_spans(placement: RecordedPlacement, work: RecordedWork) -> tuple[list[Change], list[RoleSpan]]:
    roles = work.telemetry.roles
    actions = _actions(work)
    changes = changes_of(work.telemetry.roles, actions)
    role_s = placement.row.inputs["setting"]["switch"]["role_s"]
    end_s = work.telemetry.collect_s
    return changes, with_trainer(spans_of(roles, changes, role_s, end_s), actions, end_s)


def _actions(work: RecordedWork) -> list[Mapping[str, Any]]:
    """Returns the actions taken during `collect`; those after it belong to an evaluation."""
    return [line for line in work.actions if line["t"] <= work.telemetry.collect_s]


def _within(placement: RecordedPlacement) -> tuple[tuple[Change, ...], dict[str, int], tuple[RoleTime, ...]]:
    """Returns the changes of role, the counts of other actions, and the roles' times; all empty without known work."""
    work = placement.work
    if work is None:
        return (), {}, ()
    changes, spans = _changes_and_spans(placement, work)
    kinds = [line["do"] for line in _actions(work)]
    moves = {kind: kinds.count(kind) for kind in ("take", "intake")}
    return tuple(changes), moves, role_times(spans, work.telemetry.usage)


def _instances(start: str, role: str) -> tuple[int, ...]:
    return tuple(index for index, each in enumerate(start) if each == role)


def _trainer(placement: RecordedPlacement) -> str:
    """Describes the devices of a trainer that has others than the engines have, or lends its own."""
    row = placement.row
    if LENDING in row.inputs:
        on = f"on the devices of instances {ranges(set(range(row.inputs[LENDING]['lent'])))}"
        if not row.decision.get(LENT):
            return f"{on}, which it keeps"
        lent_at = [line["t"] for line in _actions(placement.work) if line["do"] == LENDS] if placement.work else []
        return f"{on}, which generate {f'from {max(lent_at):.2f} s on' if lent_at else 'once it has learnt'}"
    if row.inputs["policy"]["placement"].get("trainer") == APART:
        own = {device for device, actors in enumerate(row.decision["roles"]["collect"]) if not actors}
        return f"on devices of its own: {ranges(own)}" if own else "on devices that it shares, since there are too few"
    return ""


def _use(time: RoleTime, collect_s: float) -> RoleUse:
    rate = time.tokens / collect_s if collect_s else 0.0
    return RoleUse(
        role=time.role,
        device_s=time.device_s,
        busy_s=time.busy_s,
        idle_fraction=time.idle_fraction,
        tokens=time.tokens,
        tokens_per_s=rate,
    )


def _seen(past: PastWork) -> SeenWork:
    if past.telemetry is None:
        return SeenWork(
            run=past.run,
            branch=past.branch,
            iteration=past.iteration,
            samples=None,
            responses=None,
            judgements=None,
            lost=past.lost,
        )
    responses, judgements = _work_lengths(past.telemetry)
    count = sum(len(wave.samples) for wave in past.telemetry.waves)
    return SeenWork(
        run=past.run,
        branch=past.branch,
        iteration=past.iteration,
        samples=count,
        responses=responses,
        judgements=judgements,
        lost="",
    )


def _work_lengths(telemetry: IterationTelemetry) -> tuple[LengthStatistics, LengthStatistics]:
    """Returns the lengths of an iteration's responses, and of its individual judgements."""
    samples = [sample for wave in telemetry.waves for sample in wave.samples]
    judgements = [tokens for sample in samples for tokens in sample.judge]
    return _lengths(sample.response for sample in samples), _lengths(judgements)


def _lengths(tokens: Iterable[int]) -> LengthStatistics:
    listed = np.array(list(tokens) or [0])
    p50, p95 = (int(np.percentile(listed, q, method="higher")) for q in (50, 95))
    return LengthStatistics(int(listed.sum()), p50, p95, int(listed.max()))
