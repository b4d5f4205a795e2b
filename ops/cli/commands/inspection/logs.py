"""`yatt logs`: prints the logs of a run's driver and actors, merged by time, filtered and optionally followed.

Consumes the records that `ops.queries.log_files` reads from the run folder.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Annotated

import typer

from flows.run.home import Home
from ops.presentation.output import message, write, write_json
from ops.queries.log_files import LEVELS, Filter, LogTail, Record, lost_logs
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples

app = typer.Typer()

POLL_SECONDS = 0.3


@app.command(
    epilog=examples(
        "yatt logs latest",
        "yatt logs quickstart-1 --level warning --lines 0",
        "yatt logs latest --iteration 12 --phase collect --actor controller-0",
        "yatt logs latest -f",
    )
)
def logs(
    run: RunArgument,
    iteration: Annotated[int | None, typer.Option(help="Show only records of this iteration.")] = None,
    phase: Annotated[str | None, typer.Option(help="Show only records of this phase, such as `collect`.")] = None,
    actor: Annotated[str | None, typer.Option(help="Show only records of actors whose names start with this.")] = None,
    level: Annotated[str, typer.Option(help=f"Minimum level: {', '.join(LEVELS)}.")] = "info",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option(min=0, help="Maximum number of records; the newest are kept. 0: all.")] = 200,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a run's logs, oldest first; `-o json` prints one object per line. Actors on other nodes are shown as ACTOR@NODE."""
    if level not in LEVELS:
        raise typer.BadParameter(f"--level {level}: expected one of {', '.join(LEVELS)}")
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        folder = place.run_folder(find_run(ledger, run)) / "logs"
    wanted = Filter(iteration, phase, actor, level)
    tail = LogTail(folder)
    newest: Iterable[Record] = filter(wanted, tail.new_records())
    shown = 0
    for record in deque(newest, maxlen=lines or None):
        _show(record, output)
        shown += 1
    if not shown and not follow:
        message(f"no matching records in {folder}")
    for lost in lost_logs(folder):
        moment = time.strftime("%H:%M:%S", time.localtime(lost.since))
        message(f"node {lost.node} is gone or does not answer: its records after {moment} are not here")
    while follow:
        sys.stdout.flush()  # so that a reader of a pipe can follow
        time.sleep(POLL_SECONDS)
        for record in filter(wanted, tail.new_records()):
            _show(record, output)


def _show(record: Record, output: Output) -> None:
    if output is Output.JSON:
        write_json(record)
        return
    moment = time.strftime("%H:%M:%S", time.localtime(record["time"]))
    place = " ".join(str(record[key]) for key in ("iteration", "phase") if key in record)
    actor = "@".join(str(record[key]) for key in ("actor", "node") if key in record)
    write(f"{moment} {record['level']:<8}{actor:<16}{place:<16}{record.get('message', '')}")
