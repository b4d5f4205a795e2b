"""`yatt compare`: compares runs by the keys of their specs, their newest metrics, and their curves.

Consumes the ledger through `ops.queries.compare`, as the dashboard does.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.completion import complete_run
from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, examples
from ops.presentation.curves import plot
from ops.presentation.output import console, message, write, write_json, write_table
from ops.presentation.words import cut
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from ops.queries.compare import RunComparison

SPEED = "tokens_per_second"
POINTS = 100
"""Maximum number of points of a curve."""
VALUE_CHARACTERS = 40
WIDEST_PLOT = 100


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    lines = (
        "yatt compare quickstart-1 quickstart-2",
        "yatt compare quickstart-1 slower-1 --metric entropy --metric grad_norm",
        "yatt compare quickstart-1 quickstart-2 quickstart-3 -o json",
    )
    app.command(epilog=examples(*lines))(compare)


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...", help="Ids of runs, unique prefixes, or `latest`.", autocompletion=complete_run
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="KEY",
            help="Draw this metric's curves. Default: what the objectives measure.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List all metrics, not only results that differ and the throughput.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare runs: the keys in which their specs differ, their newest metrics, and their curves over the same axes."""
    from flows.reports.measures import measures_of
    from flows.run.home import Home
    from ops.queries.compare import RUNS, compare

    with opened_ledger(Home.locate(home)) as ledger:
        names = list(dict.fromkeys(find_run(ledger, run) for run in runs))
        if not 2 <= len(names) <= RUNS:
            raise ConfigurationError(f"RUN: {len(names)} different runs given; expected 2 to {RUNS}")
        keys = metric or list(dict.fromkeys(key for name in names for key in measures_of(ledger, name).told))
        found = compare(ledger, names, keys, POINTS)
    if output is Output.JSON:
        write_json(asdict(found))
        return
    _write_runs(found)
    _write_differences(found)
    _write_metrics(found, every)
    _write_curves(found, keys)


def _write_runs(found: RunComparison) -> None:
    rows = [(run.id, run.state, f"{max(0, run.iteration)}/{run.target_iterations}") for run in found.runs]
    write_table(("run", "state", "iteration"), rows)


def _write_differences(found: RunComparison) -> None:
    names = [run.id for run in found.runs]
    rows = [(row.key, *(cut(row.values[name] or "-", VALUE_CHARACTERS) for name in names)) for row in found.differences]
    if rows:
        write_table(("key of the spec", *names), rows)
    else:
        write("the specs are the same\n")


def _write_metrics(found: RunComparison, every: bool) -> None:
    from yatt_core.spec.sections.metric_names import is_timing

    names = [run.id for run in found.runs]
    rows = [
        (row.key, *(row.values.get(name) for name in names))
        for row in found.metrics
        if every or row.key == SPEED or (not is_timing(row.key) and len({row.values.get(name) for name in names}) > 1)
    ]
    write_table(("newest value", *names), rows)


def _write_curves(found: RunComparison, keys: list[str]) -> None:
    for key in keys:
        curves = {
            line.run: list(zip(each.steps, each.mean, strict=True))
            for line in found.series
            for each in line.series
            if each.key == key
        }
        lines = plot(curves, min(console().width, WIDEST_PLOT))
        if not lines:
            message(f"none of the runs has the metric {key}")
            continue
        write(f"\n{key}, by iteration")
        for line in lines:
            write(line)
