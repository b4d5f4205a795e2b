"""`yatt rollouts`: shows an iteration's sealed experience, by sample or by prompt, and compares two iterations."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.cli.commands.inspection.rollout_tables import (
    tell_limits,
    write_page,
    write_pairs,
    write_summary,
)
from ops.presentation.output import write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from ops.queries.own_iterations import OwnIteration
    from ops.queries.sample_filters import Selection

app = typer.Typer()

ALL = 10**9
"""The limit in place of 0."""


@app.command(
    epilog=examples(
        "yatt rollouts latest --sort reward",
        "yatt rollouts latest --iteration 12 --group --sort spread --limit 5 --full",
        "yatt rollouts latest --where 'reward >= 0.5' --where 'finish = length'",
        "yatt rollouts quickstart-1 --compare 3:40",
        "yatt rollouts quickstart-1 --iteration 3 --prompt 130 -o json",
    )
)
def rollouts(
    run: RunArgument,
    iteration: Annotated[
        int | None, typer.Option(min=1, help="Iteration number. Default: the newest committed one.")
    ] = None,
    group: Annotated[bool, typer.Option("--group", help="Group the samples by prompt.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="Show the prompts of iteration B beside the same or the most similar prompt of iteration A.",
        ),
    ] = None,
    text: Annotated[str, typer.Option(help="Show only samples whose prompt or response contains this text.")] = "",
    prompt: Annotated[int | None, typer.Option(help="Show only samples of the prompt with this ordinal.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="Show only samples for which this holds, such as 'reward >= 0.5'; repeatable."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of samples or prompts; 0: all.")] = 20,
    sort: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Sort by prompt, or by the largest reward, advantage, tokens or part of the reward; "
            "groups also by spread (of the reward) or correct.",
        ),
    ] = "prompt",
    ascending: Annotated[bool, typer.Option("--ascending", help="Sort by the smallest value first.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Print full texts instead of a table.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the prompts, responses and rewards of an iteration, or compare two iterations.

    Of a workload of your own, show the columns that the iteration learnt from, and the files of its samples' images.
    """
    from ops.queries.columns import is_language
    from ops.queries.own_iterations import own_iteration
    from ops.queries.sample_filters import Selection

    place = Home.locate(home)
    wanted = Selection(text=text, prompt=prompt, where=tuple(where or ()), order=sort, ascending=ascending)
    compared = None if compare is None else compared_iterations(compare, iteration)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
        if compared is not None:
            _compare(
                ledger=ledger,
                home=place,
                run=name,
                iterations=compared,
                wanted=wanted,
                limit=limit,
                full=full,
                output=output,
            )
            return
        number = max(1, ledger.runs.find(name).iteration) if iteration is None else iteration
        if not is_language(ledger, name):
            found = own_iteration(ledger, place, name, number)
            _show_own(found, f"{name}, iteration {number}", output)
            if found.problems:
                raise DataError("; ".join(found.problems))
            return
        _show(
            ledger=ledger,
            home=place,
            run=name,
            iteration=number,
            wanted=wanted,
            group=group,
            limit=limit,
            full=full,
            output=output,
        )


def _show_own(found: OwnIteration, title: str, output: Output) -> None:
    """Writes what an iteration of a workload of one's own learnt from, the tables of its evaluation, and its images."""
    from ops.queries.columns import COLUMN_FACTS, cells_of
    from ops.queries.images import IMAGE_COLUMNS

    images = found.images.images
    if output is Output.JSON:
        listed = {name: asdict(table) for name, table in found.tables.items()}
        pictures = {"images": [asdict(image) for image in images]} if images else {}
        write_json({"columns": [asdict(column) for column in found.columns], "tables": listed, **pictures})
        return
    for name, table in found.tables.items():
        write_list(cells_of(table), table.rows, f"{title}: {name}")
    write_list(COLUMN_FACTS, found.columns, title)
    if images:
        write_list(IMAGE_COLUMNS, images, f"Images of {title}")


def compared_iterations(text: str, iteration: int | None) -> tuple[int, int]:
    """Returns the two iterations of `--compare A:B`. Raises `ConfigurationError`."""
    numbers = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if numbers is None:
        raise ConfigurationError(f"--compare {text!r:.60}: expected two iterations, such as 3:40")
    if iteration is not None:
        raise ConfigurationError("--iteration and --compare exclude each other; --compare A:B names both iterations")
    return int(numbers[1]), int(numbers[2])


def _show(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int,
    wanted: Selection,
    group: bool,
    limit: int,
    full: bool,
    output: Output,
) -> None:
    from ops.queries.groups import groups
    from ops.queries.rollouts import CHARACTERS, rollouts
    from ops.terminal.experience import fetch_iteration

    fetch_iteration(ledger, home, run, iteration)
    read = groups if group else rollouts
    found = read(
        ledger=ledger,
        home=home,
        run=run,
        iteration=iteration,
        wanted=wanted,
        limit=limit or ALL,
        offset=0,
        characters=CHARACTERS,
    )
    if output is Output.JSON:
        write_json(asdict(found))
    else:
        write_page(found, full)


def _compare(
    ledger: Ledger,
    home: Home,
    run: str,
    iterations: tuple[int, int],
    wanted: Selection,
    limit: int,
    full: bool,
    output: Output,
) -> None:
    from ops.queries.rollout_comparison import comparison, group_pairs, read_both
    from ops.queries.rollouts import CHARACTERS
    from ops.terminal.experience import fetch_iteration

    for iteration in iterations:
        fetch_iteration(ledger, home, run, iteration)
    before, after = read_both(ledger, home, run, *iterations)
    summary = comparison(before, after)
    found = group_pairs(
        ledger=ledger,
        home=home,
        other=before,
        rows=after,
        wanted=wanted,
        limit=limit or ALL,
        offset=0,
        characters=CHARACTERS,
    )
    if output is Output.JSON:
        write_json({**asdict(summary), "pairs": [asdict(pair) for pair in found.pairs]})
        return
    write_summary(summary)
    write_pairs(found.pairs, full)
    tell_limits(found.after, len(found.pairs), "prompts")
