"""`yatt stop` and `yatt checkpoint`: ask something of a run's driver, and wait for it if wanted.

Consumes a run's name. Produces a request in the ledger, and what became of it on standard output.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.presentation.advice import RESUME
from ops.presentation.output import message, write, write_json
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.terminal.people import acting_name
from yatt_core.errors import InfrastructureError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.read.overview import RunLine

app = typer.Typer()

WAIT_SECONDS = 0.5


def is_driven(line: RunLine) -> bool:
    """Returns True if a run has a driver that lives."""
    from ops.queries.run_list import DRIVEN, driver_of

    return driver_of(line) == DRIVEN


@app.command(epilog=examples("yatt stop latest", "yatt stop quickstart-3 --wait --within 60"))
def stop(
    run: RunArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the driver has stopped.")] = False,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="Stop within this many seconds, if necessary in the middle of an iteration.",
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask a run's driver to stop after the current iteration or within a time limit, with a checkpoint."""
    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        line = ledger.overview.line(name)
        driven = is_driven(line)
        if driven:
            ledger.runs.ask_to_stop(name, "yatt stop", within, acting_name())
        if driven and wait:
            message(f"{name}: waiting for its driver to stop")
            next_holder = _await_end(ledger, name, line.term)
            if next_holder is not None:
                message(f"{name}: the driver has stopped, and another one has taken over the run: {next_holder}")
        state = ledger.runs.find(name).state
    if output is Output.JSON:
        write_json({"run": name, "state": state, "asked": driven})
    elif not driven:
        from db.write.runs import DRIVEN_STATES

        lost = (
            f"; it was lost, and `{RESUME} {name}` continues the run" if state in DRIVEN_STATES else ": nothing to stop"
        )
        write(f"{name} is {state} and has no driver{lost}")
    else:
        limit = "after its current iteration" if within is None else f"within {within:g} s"
        write(f"{name} is {state}" if wait else f"{name} is asked to stop {limit}")


@app.command(epilog=examples("yatt checkpoint latest", "yatt checkpoint quickstart-3 --wait"))
def checkpoint(
    run: RunArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the checkpoint is durable.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask a run's driver for a checkpoint after its current iteration; the run goes on.

    Of a run that waits for something, it says so, and which checkpoint is the newest.
    """
    from ops.queries.checkpoints import request

    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        asked = request(ledger, name, "yatt checkpoint", acting_name())
        if wait and asked.wait is not None:
            message(asked.words(time.time()))
        taken = _await_checkpoint(ledger, name, asked.request.seq) if wait else None
    if output is Output.JSON:
        waits = None if asked.wait is None else asdict(asked.wait)
        write_json({"run": name, "asked": True, "iteration": taken, "newest": asked.newest, "waiting": waits})
    elif taken is None:
        write(asked.words(time.time()))
    else:
        write(f"{name}: the checkpoint of iteration {taken} is durable")


def _await_checkpoint(ledger: Ledger, run: str, request: int) -> int:
    """Waits until a request for a checkpoint is met; returns the checkpoint's iteration.

    Raises `InfrastructureError` if the driver ends before.
    """
    message(f"{run}: waiting for the checkpoint")
    while True:
        driven = is_driven(ledger.overview.line(run))
        taken = ledger.checkpoint_requests.met_by(run, request)
        if taken is not None:
            return taken
        if not driven:
            raise InfrastructureError(
                f"run {run}: its driver ended before the checkpoint was durable; `yatt resume {run}` continues the run "
                "and takes it"
            )
        time.sleep(WAIT_SECONDS)


def _await_end(ledger: Ledger, run: str, term: int) -> str | None:
    """Waits until the lease of this term is released, and returns the run's next holder, such as a scheduled window.

    Raises `InfrastructureError` if the lease expires instead.
    """
    while (line := ledger.overview.line(run)).holder is not None and line.term == term:
        if not is_driven(line):
            raise InfrastructureError(
                f"run {run}: its driver disappeared without an orderly stop; `yatt resume {run}` continues the run"
            )
        time.sleep(WAIT_SECONDS)
    return line.holder
