"""`yatt scores`: the slowest and the dearest scores of judges behind an endpoint, with the samples that they are about."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.presentation.output import write, write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples

if TYPE_CHECKING:
    from ops.queries.score_efforts import CostlyScores

app = typer.Typer()


@app.command(
    epilog=examples(
        "yatt scores latest",
        "yatt scores latest --iteration 12 --part judge",
        "yatt scores quickstart-1 --last 100 --limit 50 -o json",
    )
)
def scores(
    run: RunArgument,
    iteration: Annotated[int | None, typer.Option(min=1, help="Only this iteration.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Number of the newest committed iterations to look at.")] = 10,
    part: Annotated[str | None, typer.Option(help="Only the scores of this reward part.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of the slowest, and of the dearest scores.")] = 10,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the slowest and the dearest scores of judges behind an endpoint.

    A run keeps the 20 slowest and the 20 dearest of each shard and part. `yatt rollouts RUN --iteration N --prompt P` shows the
    samples of a prompt.
    """
    from ops.queries.score_efforts import costly_scores

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
        newest = ledger.runs.find(name).iteration if iteration is None else iteration
        oldest = max(1, newest - last + 1) if iteration is None else iteration
        found = costly_scores(ledger, place, name, first=oldest, last=newest, part=part, limit=limit)
    if output is Output.JSON:
        write_json(asdict(found))
    else:
        _write(found)


def _write(found: CostlyScores) -> None:
    from ops.queries.score_efforts import score_columns

    where = f"iteration {found.first}" if found.first == found.last else f"iterations {found.first} to {found.last}"
    if not found.slowest:
        write(f"{found.run}: no endpoint was asked for a score in {where}")
        return
    write_list(score_columns(), found.slowest, f"the slowest scores of {where}")
    if found.dearest:
        write_list(score_columns(), found.dearest, f"the dearest scores of {where}")
