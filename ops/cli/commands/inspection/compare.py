"""`yatt compare`: compares runs by the keys of their specs, their digests, their newest metrics, and their curves.

Consumes the ledger through `ops.queries.compare`, as the dashboard does.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.reports.measures import measures_of
from flows.run.home import Home
from ops.presentation.curves import plot
from ops.presentation.output import console, message, write, write_json, write_list
from ops.terminal.completion import complete_run
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from ops.queries.compare import RunComparison

app = typer.Typer()

SPEED = "tokens_per_second"
POINTS = 100
"""Maximum number of points of a curve."""
WIDEST_PLOT = 100


@app.command(
    epilog=examples(
        "yatt compare quickstart-1 quickstart-2",
        "yatt compare quickstart-1 slower-1 --metric entropy --metric grad_norm",
        "yatt compare quickstart-1 quickstart-2 quickstart-3 -o json",
    )
)
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
    """Compare runs: the keys in which their specs differ, their digests, newest metrics, and curves over the same axes."""
    from ops.queries.compare import MOST_RUNS, compare

    with opened_ledger(Home.locate(home)) as ledger:
        names = list(dict.fromkeys(find_run(ledger, run) for run in runs))
        if not 2 <= len(names) <= MOST_RUNS:
            raise ConfigurationError(f"RUN: {len(names)} different runs given; expected 2 to {MOST_RUNS}")
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
    from ops.queries.compare import digest_columns, side_by_side

    write_list(side_by_side(found.runs), found.runs)
    write_list(digest_columns(found.runs), found.digests, "digests of what they computed")


def _write_differences(found: RunComparison) -> None:
    from ops.queries.compare import difference_columns

    if found.differences:
        write_list(difference_columns(found.runs), found.differences, "differences between the specs")
    else:
        write("the specs are the same\n")


def _write_metrics(found: RunComparison, every: bool) -> None:
    from ops.queries.compare import value_columns
    from yatt_core.spec.sections.metric_names import is_timing

    names = [run.id for run in found.runs]
    rows = []
    for row in found.metrics:
        is_speed = row.key == SPEED and any(row.values.values())  # runs without tokens have 0 of them a second
        differs = not is_timing(row.key) and len({row.values.get(name) for name in names}) > 1
        if every or is_speed or differs:
            rows.append(row)
    write_list(value_columns(found.runs), rows, "newest values")


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
