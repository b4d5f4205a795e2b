"""Which role each instance had at each time of an iteration, and how much of that time it worked.

Consumes the roles at the start, the log of actions including the lines that record when roles started
(`actions.serves_line`), and the engines' usage. Produces role changes, spans by instance, and device seconds by
role. Times are seconds since the start of the iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yatt_core.placement.actions import JUDGE, KEEPS, LENDS, ROLLOUT, SERVES, TRAINING
from yatt_core.placement.seen import SwitchTime, Usage

GOING_OVER = ""
"""Takes the place of a role while an instance is switching and out of service."""


@dataclass(frozen=True, slots=True)
class RoleSpan:
    """A period of an instance's time in one role, or switching."""

    instance: int
    role: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Length of the period."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Change:
    """An instance's change to another role.

    how: `start` (it joins the iteration late), `empty` (it had no sequences), `migrate` (its sequences were moved to
        other instances) or `drain` (it finished its sequences first).
    asked_s: when the change was requested.
    serves_s: when the instance started to serve the new role; None if the log does not record it.
    took_s: measured seconds for which it was out of service before that; None if not measured.
    """

    instance: int
    before: str
    after: str
    how: str
    asked_s: float
    serves_s: float | None
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class RoleTime:
    """The time that all instances spent in one role.

    tokens: number of tokens decoded in this role.
    """

    role: str
    device_s: float
    busy_s: float
    tokens: int

    @property
    def idle_fraction(self) -> float:
        """Fraction of the role's time that passed without work; never negative, although logged times are rounded."""
        return max(0.0, 1.0 - self.busy_s / self.device_s) if self.device_s else 0.0


def changes_of(start: str, lines: Iterable[Mapping[str, Any]]) -> list[Change]:
    """Returns the role changes in the order in which they were requested.

    start: the initial role of each instance.
    lines: lines of the log, in order of time.
    """
    roles = list(start)
    changes: list[Change] = []
    open_changes: dict[int, int] = {}
    for line in lines:
        kind = line["do"]
        index = int(line.get("instance", -1))
        if kind in ("switch", "handover"):
            how = "empty" if kind == "switch" else "migrate" if line["migrate"] else "drain"
            open_changes[index] = len(changes)
            changes.append(
                Change(
                    instance=index, before=roles[index], after=line["role"], how=how, asked_s=line["t"], serves_s=None
                )
            )
        elif kind == SERVES and index in open_changes:
            asked = changes[open_changes[index]]
            changes[open_changes.pop(index)] = Change(
                instance=index,
                before=asked.before,
                after=line["role"],
                how=asked.how,
                asked_s=asked.asked_s,
                serves_s=line["t"],
                took_s=line.get("took_s"),
            )
            roles[index] = line["role"]
        elif kind == SERVES:
            changes.append(
                Change(
                    instance=index,
                    before=GOING_OVER,
                    after=line["role"],
                    how="start",
                    asked_s=0.0,
                    serves_s=line["t"],
                    took_s=line.get("took_s"),
                )
            )
    return changes


def switch_times(changes: Iterable[Change]) -> tuple[SwitchTime, ...]:
    """Returns the measured times of the changes, in their order."""
    return tuple(SwitchTime(change.how == "start", change.took_s) for change in changes if change.took_s is not None)


def spans_of(start: str, changes: Sequence[Change], role_s: float, end_s: float) -> list[RoleSpan]:
    """Returns every instance's spans until `end_s`, ordered by instance and time.

    role_s: seconds that a switch takes once an instance is empty, for switches that were not measured.
    """
    by_instance: dict[int, list[Change]] = {index: [] for index in range(len(start))}
    for change in changes:
        by_instance[change.instance].append(change)
    return [
        span
        for index, role in enumerate(start)
        for span in _spans_of_one(index=index, role=role, changes=by_instance[index], role_s=role_s, end_s=end_s)
        if span.seconds > 0
    ]


def with_trainer(spans: Iterable[RoleSpan], lines: Iterable[Mapping[str, Any]], end_s: float) -> list[RoleSpan]:
    """Returns the spans with those of the trainer in place of what they cover, ordered by instance and time.

    Spans that take no time are left out, also where the trainer has none.

    lines: lines of the log, in order of time.
    """
    kept: dict[int, list[tuple[float, float]]] = {}
    since: dict[int, float] = {}
    for line in lines:
        if line["do"] == KEEPS:
            since.setdefault(line["instance"], line["t"])
        elif line["do"] == LENDS and line["instance"] in since:
            kept.setdefault(line["instance"], []).append((since.pop(line["instance"]), line["t"]))
    for index, start in since.items():
        kept.setdefault(index, []).append((start, end_s))
    own = [span for each in spans for span in _outside(each, kept.get(each.instance, ()))]
    trainers = [RoleSpan(index, TRAINING, *period) for index, periods in kept.items() for period in periods]
    return sorted(
        (span for span in (*own, *trainers) if span.seconds > 0), key=lambda span: (span.instance, span.start_s)
    )


def _outside(span: RoleSpan, periods: Sequence[tuple[float, float]]) -> list[RoleSpan]:
    """Returns the parts of a span outside of periods, which are in order of time; a part may take no time."""
    parts = []
    start = span.start_s
    for begin, end in periods:
        if end > start and begin < span.end_s:
            parts.append(replace(span, start_s=start, end_s=max(start, begin)))
            start = min(end, span.end_s)
    return [*parts, replace(span, start_s=start)]


def _spans_of_one(index: int, role: str, changes: Sequence[Change], role_s: float, end_s: float) -> list[RoleSpan]:
    spans = []
    since = 0.0
    nexts = [*(change.asked_s for change in changes[1:]), end_s]
    for change, following in zip(changes, nexts, strict=False):
        if change.serves_s is None:
            # It never served the new role. An empty instance left at once; the log lacks the time when a busy one did.
            left = change.asked_s if change.how == "empty" else following
            served = following
        else:
            took = role_s if change.took_s is None else change.took_s
            left = change.asked_s if change.how == "start" else max(change.asked_s, change.serves_s - took)
            served = change.serves_s
        left = min(max(left, since), end_s)
        served = min(served, end_s)
        spans += [RoleSpan(index, role, since, left), RoleSpan(index, GOING_OVER, left, served)]
        role = change.after
        since = served
    return [*spans, RoleSpan(index, role, since, end_s)]


def role_times(spans: Iterable[RoleSpan], usage: Iterable[Usage]) -> tuple[RoleTime, ...]:
    """Returns the times of rollout, judge, and switching, which never counts as work; then the trainer's, if it has any."""
    listed = list(spans)
    trains = any(span.role == TRAINING for span in listed)
    device_s = dict.fromkeys((ROLLOUT, JUDGE, GOING_OVER, *([TRAINING] if trains else [])), 0.0)
    busy_s = dict.fromkeys(device_s, 0.0)
    tokens = dict.fromkeys(device_s, 0)
    for span in listed:
        device_s[span.role] += span.seconds
    for row in usage:
        busy_s[row.role] += row.decode_s + row.prefill_s
        tokens[row.role] += row.sequence_steps
    return tuple(RoleTime(role, device_s[role], busy_s[role], tokens[role]) for role in device_s)


def idle_fraction(times: Iterable[RoleTime]) -> float:
    """Returns the fraction of all instances' time without work: waiting or switching. The trainer's time is not theirs."""
    listed = tuple(time for time in times if time.role != TRAINING)
    whole = sum(each.device_s for each in listed)
    return max(0.0, 1.0 - sum(each.busy_s for each in listed) / whole) if whole else 0.0


def busy_shares(spans: Iterable[RoleSpan], usage: Iterable[Usage]) -> dict[tuple[int, str], float]:
    """Returns, by instance and role, the fraction of its time in the role for which the instance worked.

    The fraction is capped at 1, because the log's times are rounded.
    """
    device_s: dict[tuple[int, str], float] = {}
    busy_s: dict[tuple[int, str], float] = {}
    for span in spans:
        key = (span.instance, span.role)
        device_s[key] = device_s.get(key, 0.0) + span.seconds
    for row in usage:
        busy_s[row.instance, row.role] = busy_s.get((row.instance, row.role), 0.0) + row.decode_s + row.prefill_s
    return {key: min(1.0, busy_s.get(key, 0.0) / seconds) for key, seconds in device_s.items()}
