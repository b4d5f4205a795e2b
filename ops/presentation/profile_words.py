"""Where the time of iterations goes, in tables: by phase and process, on the critical path, and by kind.

Consumes a `Profile`; produces rows, lines and plain values. Times are milliseconds of one iteration.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows.reports.profile import AS_JUDGE, is_others
from flows.run.profile_record import role_of
from ops.presentation.output import write, write_table
from yatt_core.counting import many
from yatt_core.spent_time import DATA, ENGINE, LEDGER, OTHER, PREFECT, RAY, REWARDS, TOOLS, WAITING, WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flows.reports.profile import Profile, ProfileStep

NAMES = {
    ENGINE: "engine compute",
    REWARDS: "rewards",
    TOOLS: "tools",
    WEIGHTS: "weights",
    DATA: "data",
    RAY: "Ray",
    PREFECT: "Prefect",
    LEDGER: "ledger",
    WAITING: "waiting",
    OTHER: "not accounted",
}
"""How the kinds are called, in the order of the columns."""
SHOWN = 3
"""Of more processes of a role in a phase, the busiest ones are shown."""
LEAST_SHARE = 0.001
"""Smaller steps of the critical path are shown together."""
LEAST_SECONDS = 0.00005
"""Less is shown as an empty cell."""
NOT_RECORDED = "not recorded"
Row = tuple[object, ...]


def profile_facts(profile: Profile) -> dict[str, Any]:
    """Returns a profile as plain values; null where nothing is recorded."""
    if not profile.recorded:
        return {"recorded": [], "not_recorded": list(profile.not_recorded), "wall_seconds": None}
    return {
        "recorded": list(profile.recorded),
        "not_recorded": list(profile.not_recorded),
        "wall_seconds": profile.wall,
        "accounted_seconds": profile.accounted,
        "not_accounted_seconds": profile.not_accounted,
        "unheard": list(profile.unheard),
        "others": dict(profile.others),
        "processes": [asdict(step) for step in profile.processes],
        "critical_path": [asdict(step) for step in profile.path],
        "kinds": dict(by_kind(profile)),
    }


def write_profile_text(run: str, profile: Profile) -> None:
    """Writes a profile as text."""
    if profile.not_recorded:
        write(
            f"{iterations_text(profile.not_recorded)}: {NOT_RECORDED}: made by an earlier version, or the file is lost"
        )
    if not profile.recorded:
        return
    count = len(profile.recorded)
    mean = "" if count == 1 else f", mean of {count}"
    write(f"{run}, {iterations_text(profile.recorded)}{mean}: {milliseconds(profile.wall)} ms from commit to commit")
    write_table(*process_table(profile), "by phase and process, in milliseconds")
    write_table(("phase", "process", "kind", "ms", "share"), path_rows(profile), "critical path")
    write_table(("kind", "ms", "share"), kind_rows(profile), "critical path by kind")
    if profile.unheard:
        write(
            f"{', '.join(profile.unheard)}: reported in only some of these iterations, and counted as idle in the others"
        )


def iterations_text(numbers: Sequence[int]) -> str:
    """Returns the iterations in words."""
    if len(numbers) == 1:
        return f"iteration {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"iterations {numbers[0]} to {numbers[-1]}"
    return f"{many(len(numbers), 'iteration')} between {numbers[0]} and {numbers[-1]}"


def milliseconds(seconds: float) -> str:
    """Returns seconds as milliseconds; short ones with a digit after the point."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.01 else f"{1000 * seconds:.1f}"


def process_table(profile: Profile) -> tuple[list[str], list[Row]]:
    """Returns the columns and rows of the table by phase and process; kinds that nobody spent time on are left out."""
    steps = [step for step in profile.processes if step.seconds >= LEAST_SECONDS]
    kinds = [kind for kind in NAMES if any(step.kind == kind for step in steps)]
    spent: dict[tuple[str, str], dict[str, float]] = {}
    for step in steps:
        spent.setdefault((step.phase, step.process), {})[step.kind] = step.seconds
    roles: dict[tuple[str, str], list[str]] = {}
    for phase, process in spent:
        roles.setdefault((phase, role_of(process)), []).append(process)
    rows = []
    for (phase, role), processes in roles.items():
        named = [name for name in processes if not is_others(name)]
        busiest = sorted(named, key=lambda name: -sum(spent[phase, name].values()))
        shown = [name for name in named if name in busiest[:SHOWN] or len(processes) == SHOWN + 1 == len(named)]
        rows += [
            _row(profile=profile, phase=phase, process=name, spent=spent[phase, name], kinds=kinds) for name in shown
        ]
        rest = {name: count_of(profile, name) for name in processes if name not in shown}
        if rest:
            count = sum(rest.values())
            mean = {
                kind: sum(number * spent[phase, name].get(kind, 0.0) for name, number in rest.items()) / count
                for kind in kinds
            }
            rows.append(_row(profile=profile, phase=phase, process=_more(count, role), spent=mean, kinds=kinds))
    return ["phase", "process", "ms", "share", *(NAMES[kind] for kind in kinds)], rows


def count_of(profile: Profile, process: str) -> int:
    """Returns how many processes a name stands for."""
    return profile.others.get(role_of(process), 1) if is_others(process) else 1


def shown_process(profile: Profile, process: str) -> str:
    """Returns how a process is called for people."""
    if not is_others(process):
        return process
    named = _more(count_of(profile, process), role_of(process))
    return named + AS_JUDGE if process.endswith(AS_JUDGE) else named


def _more(count: int, role: str) -> str:
    return f"{count} more of {role}, mean"


def path_rows(profile: Profile) -> list[Row]:
    """Returns the rows of the critical path, and its sum.

    In the mean over several iterations the processes of a role are one row: the busiest one is another each time.
    """
    sums: dict[tuple[str, str, str], float] = {}
    for step in profile.path:
        process = step.process if len(profile.recorded) == 1 else role_of(step.process)
        key = (step.phase, process, NAMES[step.kind])
        sums[key] = sums.get(key, 0.0) + step.seconds
    shown = {key: seconds for key, seconds in sums.items() if seconds >= LEAST_SHARE * profile.wall}
    rows: list[Row] = [(*key, milliseconds(seconds), share(profile, seconds)) for key, seconds in shown.items()]
    total = sum(sums.values())
    rest = total - sum(shown.values())
    if len(shown) < len(sums):
        rows.append(("smaller parts", "", "", milliseconds(rest), share(profile, rest)))
    return [*rows, ("all", "", "", milliseconds(total), share(profile, total))]


def by_kind(profile: Profile) -> list[tuple[str, float]]:
    """Returns the critical path's seconds by kind, but for what is not accounted."""
    return [(kind, _sum(step for step in profile.path if step.kind == kind)) for kind in NAMES if kind != OTHER]


def kind_rows(profile: Profile) -> list[Row]:
    """Returns the critical path by kind, what is not accounted, and the wall time, which they add up to."""
    kinds = [(NAMES[kind], seconds) for kind, seconds in by_kind(profile) if seconds > 0.0]
    lines = [*kinds, (NAMES[OTHER], profile.not_accounted), ("iteration", profile.wall)]
    return [(name, milliseconds(seconds), share(profile, seconds)) for name, seconds in lines]


def share(profile: Profile, seconds: float) -> str:
    """Returns seconds as a share of the iteration."""
    return f"{seconds / profile.wall:.1%}" if profile.wall > 0.0 else ""


def _row(profile: Profile, phase: str, process: str, spent: dict[str, float], kinds: Sequence[str]) -> Row:
    total = sum(spent.values())
    cells = [milliseconds(spent[kind]) if spent.get(kind, 0.0) >= LEAST_SECONDS else "" for kind in kinds]
    return phase, process, milliseconds(total), share(profile, total), *cells


def _sum(steps: Iterable[ProfileStep]) -> float:
    return sum(step.seconds for step in steps)
