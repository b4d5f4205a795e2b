"""The time account in `yatt show`: the bar of its buckets, crash costs by phase, and the checkpoint interval."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ops.presentation.output import write, write_table
from ops.presentation.words import duration
from yatt_core.counting import many

if TYPE_CHECKING:
    from db.ledger import Ledger

BAR_WIDTH = 60
MARKS = {"productive": "█", "redone": "▓", "checkpoint": "▒", "start": "╱", "restart": "░", "waiting": "·", "idle": " "}


def time_facts(ledger: Ledger, run: str, every: int) -> dict[str, Any]:
    """Returns the accounts of a run's wall time and the advice on its checkpoints as plain values.

    every: the spec's `checkpoints.every`.
    """
    from flows.reports.accounting import accounts_of
    from flows.reports.advice import advise

    history = ledger.overview.history(run)
    accounts = accounts_of(history)
    return {"time": asdict(accounts), "checkpoint_advice": asdict(advise(history, accounts, every))}


def write_time(facts: dict[str, Any]) -> None:
    """Writes the accounts and the advice as text; nothing if no time has been recorded yet."""
    time = facts["time"]
    if not time["wall_seconds"]:
        return
    write(f"time: {duration(time['wall_seconds'])}, of which |{bar(time['buckets'], time['wall_seconds'])}|")
    for name, seconds in time["buckets"].items():
        write(f"  {MARKS[name]} {name:<12}{seconds / time['wall_seconds']:>7.1%}  {duration(seconds)}")
    if time["ettr"] is not None:
        write(f"  ETTR {time['ettr']:.3f}: productive time over all but idle time")
    if time["crashes"]:
        title = f"cost of {many(len(time['crashes']), 'crash')}"
        write_table(("phase", "crashes", "redone", "restart"), crash_rows(time["crashes"]), title)
    write(advice_line(facts["checkpoint_advice"]))


def bar(buckets: dict[str, float], wall: float) -> str:
    """Returns a line of marks in proportion to the buckets; rounding is cumulative, so that the marks fill the line."""
    line = ""
    done = 0.0
    for name, seconds in buckets.items():
        done += seconds
        line += MARKS[name] * (round(BAR_WIDTH * done / wall) - len(line))
    return line


def crash_rows(crashes: list[dict[str, Any]]) -> list[tuple[str, int, str, str]]:
    """Returns a row per phase, and one with the totals.

    A row has the number of crashes during the phase, the time that repeating the phase took after crashes during any
    phase, and the time that restarting took after crashes during this phase.
    """
    struck: dict[str, int] = {}
    redone: dict[str, float] = {}
    restart: dict[str, float] = {}
    for crash in crashes:
        struck[crash["phase"]] = struck.get(crash["phase"], 0) + 1
        restart[crash["phase"]] = restart.get(crash["phase"], 0.0) + crash["restart_seconds"]
        for phase, seconds in crash["redone"].items():
            redone[phase] = redone.get(phase, 0.0) + seconds
    phases = sorted(struck.keys() | redone.keys())
    rows = [(phase, struck.get(phase, 0), _time(redone.get(phase)), _time(restart.get(phase))) for phase in phases]
    return [*rows, ("all", len(crashes), _time(sum(redone.values())), _time(sum(restart.values())))]


def advice_line(advice: dict[str, Any]) -> str:
    """Returns the advice as text, with the figures that it is based on."""
    if advice["every"] is None:
        return "checkpoints.every: no advice until an iteration has been committed and a checkpoint taken"
    seen = f"{many(advice['failures'], 'failure')} lost the tensors, one every {duration(advice['seconds_between_failures'])}"
    if not advice["failures"]:
        seen = f"no failure lost the tensors; one every {duration(advice['seconds_between_failures'])} is assumed"
    figures = (
        f"a checkpoint stalls training for {duration(advice['stall_seconds'])} ({advice['checkpoints']} measured), replay takes "
        f"{duration(advice['replay_seconds'])} per iteration of {duration(advice['iteration_seconds'])}; {seen}"
    )
    costs = f"{advice['overhead']:.2%} of the time; {advice['overhead_now']:.2%} with the current {advice['now']}"
    if advice["firm"]:
        return f"checkpoints.every: {advice['every']} would cost least ({costs}): {figures}"
    return f"checkpoints.every: too few measurements for firm advice, possibly {advice['every']} ({costs}): {figures}"


def _time(seconds: float | None) -> str:
    return "" if not seconds else duration(seconds)
