"""`yatt watch`: follows a run until its driver ends. Reads only, and only the ledger."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from db.core.errors import LedgerUnavailable
from flows.run.home import Home
from ops.presentation.output import console, message, write, write_json
from ops.terminal.completion import complete_run
from ops.terminal.lookup import LATEST, find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ExitCode

if TYPE_CHECKING:
    from db.ledger import Ledger
    from ops.queries.watch import Watched

app = typer.Typer()

POLL_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""Without a terminal, a line is written at each commit and each new state, and after this time at the latest."""
CODES = {"failed": ExitCode.FAILURE, "paused": ExitCode.PAUSED}


@app.command(epilog=examples("yatt watch", "yatt watch quickstart-3", "yatt watch latest --once -o json"))
def watch(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="Run id, a unique prefix of it, or `latest`.", autocompletion=complete_run
        ),
    ] = LATEST,
    once: Annotated[bool, typer.Option("--once", help="Show the run once and exit with 0.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Follow a run: phase, progress, curves, throughput, devices and alarms; ends with its driver.

    Needs only the ledger: with YATT_LEDGER set to its address, it works from another machine. Exit code 0 if the run
    completed or was stopped, 1 if it failed or its driver was lost, 4 if it is paused. Ctrl-C ends the view, not the run.
    """
    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        if once:
            _show_once(ledger, name, output)
            return
        seen = _follow(ledger, name, output)
    if seen.run.driver == "lost":
        message(f"the driver of {name} is lost; `yatt resume {name}` continues the run")
        raise typer.Exit(ExitCode.FAILURE)
    raise typer.Exit(CODES.get(seen.run.state, ExitCode.OK))


def _show_once(ledger: Ledger, run: str, output: Output) -> None:
    from ops.cli.commands.inspection.run_picture import line, picture
    from ops.queries.watch import watched

    seen = watched(ledger, run)
    screen = console()
    if output is Output.JSON:
        write_json(asdict(seen))
    elif screen.is_terminal:
        screen.print(picture(seen))
    else:
        write(line(seen))


def _follow(ledger: Ledger, run: str, output: Output) -> Watched:
    """Shows the run until nobody drives it; returns it as it then is."""
    from rich.live import Live

    from ops.cli.commands.inspection.run_picture import picture
    from ops.queries.watch import watched

    def look(before: Watched | None) -> Watched:
        try:
            return watched(ledger, run)
        except LedgerUnavailable:  # it may come back
            if before is None:
                raise
            return before

    screen = console()
    if output is Output.JSON or not screen.is_terminal:
        return _follow_in_lines(look, output)
    seen = look(None)
    with Live(picture(seen), console=screen, auto_refresh=False) as live:
        while _goes_on(seen):
            time.sleep(POLL_SECONDS)
            seen = look(seen)
            live.update(picture(seen), refresh=True)
    return seen


def _follow_in_lines(look: Callable[[Watched | None], Watched], output: Output) -> Watched:
    from ops.cli.commands.inspection.run_picture import line

    told: tuple[object, ...] = ()
    told_at = 0.0
    seen = look(None)
    while True:
        news = (seen.run.iteration, seen.run.state, seen.run.driver, tuple(alarm.seq for alarm in seen.alarms))
        if news != told or time.monotonic() - told_at >= SILENT_SECONDS:
            if output is Output.JSON:
                write_json(asdict(seen))
            else:
                write(line(seen))
                _tell_alarms(seen, told)
            sys.stdout.flush()  # so that a reader of a pipe can follow
            told = news
            told_at = time.monotonic()
        if not _goes_on(seen):
            return seen
        time.sleep(POLL_SECONDS)
        seen = look(seen)


def _tell_alarms(seen: Watched, told: tuple[object, ...]) -> None:
    known = told[-1] if told else ()
    for alarm in reversed(seen.alarms):
        if isinstance(known, tuple) and alarm.seq not in known:
            write(f"alarm of {alarm.rule} in iteration {alarm.iteration}: {alarm.text}")


def _goes_on(seen: Watched) -> bool:
    return seen.run.driver == "driven"
