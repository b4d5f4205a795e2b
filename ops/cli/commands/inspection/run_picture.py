"""Draws a run in progress for a terminal, and tells it in lines for everything else.

Consumes `ops.queries.watch.Watched` and the time; reads nothing itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flows.reports.measures import HELD_OUT, NAMES, name_of
from ops.presentation.curves import sparkline
from ops.presentation.placement_words import roles_text
from ops.presentation.words import age, at_the_start, duration, phase_name
from ops.queries.run_list import DRIVEN, LOST

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ops.queries.series import SeriesView
    from ops.queries.watch import Watched

MACHINE = {
    "system/cpu_utilization_percentage": "CPU {:.0f} %",
    "system/system_memory_usage_percentage": "memory {:.0f} %",
    "system/disk_usage_percentage": "disk {:.0f} %",
}


def doing(seen: Watched) -> str:
    """Returns what the run is doing, or why nothing happens."""
    run = seen.run
    if run.driver == LOST:
        return "its driver is lost"
    if run.driver != DRIVEN:
        return run.state_reason or "nobody drives it"
    if seen.under_way:
        return ", ".join(
            phase_name(each.phase, seen.sft) + (f" (attempt {each.number})" if each.number > 1 else "")
            for each in seen.under_way
        )
    if not seen.begun:
        return "starting"
    if run.state == "waiting":
        return run.state_reason
    return "between phases" if run.state == "running" else "ending"


def line(seen: Watched) -> str:
    """Returns the run in one line."""
    run = seen.run
    figures = [f"iteration {max(0, run.iteration)}/{run.target_iterations}", run.state, doing(seen)]
    told = (curve.key for curve in seen.curves)
    figures += [f"{name_of(key)} {seen.metrics[key]:.3f}" for key in told if key in seen.metrics]
    if "tokens_per_second" in seen.metrics:
        figures.append(f"{seen.metrics['tokens_per_second']:,.0f} tokens/s")
    if run.eta_seconds:
        figures.append(f"about {duration(run.eta_seconds)} remaining")
    return "  ".join(figures)


def picture(seen: Watched) -> RenderableType:
    """Returns the run as a block for a terminal of any width."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    run = seen.run
    now = time.time()
    head = Table.grid(padding=(0, 2))
    place = f"{max(0, run.iteration)}/{run.target_iterations}"
    bar = ProgressBar(total=max(1, run.target_iterations), completed=max(0, run.iteration), width=24)
    remaining = f"about {duration(run.eta_seconds)} remaining" if run.eta_seconds else ""
    head.add_row(Text(run.id, style="bold"), run.state, bar, place, remaining)
    rows = Table.grid(padding=(0, 2))
    since = [age(now - each.since_at / 1000) for each in seen.under_way[:1]]
    rows.add_row("now", Text(" for ".join([doing(seen), *since])))
    for curve in seen.curves:
        if curve.steps:
            rows.add_row(name_of(curve.key), Text(_curve(curve, seen.sft)))
    drawn = {curve.key for curve in seen.curves}
    figures = [
        f"{name_of(key)} {value:,.4g}"
        for key, value in seen.metrics.items()
        if key not in drawn and ("/" not in key or key in NAMES)
    ]
    if figures:
        rows.add_row("newest", Text("   ".join(figures)))
    if devices := _devices(seen):
        rows.add_row("devices", Text(devices))
    for alarm in seen.alarms:
        rows.add_row("alarm", Text(f"{age(now - alarm.at / 1000)} ago, {alarm.rule}: {alarm.text}", style="yellow"))
    return Group(head, rows)


def _curve(curve: SeriesView, sft: bool) -> str:
    first = curve.mean[0]
    last = curve.mean[-1]
    begins = f"{at_the_start(sft)} " if curve.key.startswith(HELD_OUT) and curve.steps[0] == 0 else ""
    return f"{sparkline(curve.mean)}  {begins}{first:.3f}, now {last:.3f}"


def _devices(seen: Watched) -> str:
    machine = [text.format(seen.metrics[key]) for key, text in MACHINE.items() if key in seen.metrics]
    gpus = [
        f"GPU {key.split('_')[1]} {value:.0f} %"
        for key, value in sorted(seen.metrics.items())
        if key.startswith("system/gpu_") and key.endswith("_utilization_percentage")
    ]
    roles = f"{roles_text(seen.roles)} ({seen.placement})" if roles_text(seen.roles) else ""
    return "   ".join([*([roles] if roles else []), *gpus, *machine])
