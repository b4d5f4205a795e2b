"""`yatt up`, `yatt down` and `yatt status`: control a home's service group, in this terminal or detached.

Consumes options and the environment; writes the addresses to standard output, as text or as one JSON object, and events of
the members to standard error.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns, DurationCell
from ops.presentation.output import message, write, write_json, write_list
from ops.presentation.words import moment
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many
from yatt_core.errors import ExitCode

if TYPE_CHECKING:
    from ops.group.control import ServiceGroup
    from ops.group.status import GroupStatus, MemberStatus

app = typer.Typer()

PREFECT_PORT = 4200
MLFLOW_PORT = 5000
DASHBOARD_PORT = 8686
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PortOption = typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")


@app.command(
    epilog=examples(
        "yatt up", "yatt up --detach -o json", "YATT_LEDGER=postgresql://yatt@db/ledger yatt up --prefect-port 0"
    )
)
def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the group is up; it keeps running until `yatt down`.")
    ] = False,
    prefect_port: Annotated[int, PortOption] = PREFECT_PORT,
    mlflow_port: Annotated[int, PortOption] = MLFLOW_PORT,
    dashboard_port: Annotated[int, PortOption] = DASHBOARD_PORT,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start Prefect, a worker, MLflow and the dashboard on this machine, and keep them running until Ctrl-C.

    Services that die are restarted. Databases are SQLite files in the home folder unless YATT_LEDGER,
    PREFECT_API_DATABASE_CONNECTION_URL and MLFLOW_BACKEND_STORE_URI name others (postgresql://user:password@host/database).
    """
    from ops.group.control import await_ready, hold, start, stop
    from ops.group.members import Ports

    place = Home.locate(home)
    with _ending() as ended:
        group = start(place, Ports(prefect_port, mlflow_port, dashboard_port, worker=0), detach, os.environ)
        try:
            if group.adopted:
                _say(
                    "the group was already up, but its terminal is gone: this terminal takes it over, with its ports unchanged"
                )
            await_ready(group, ended, _say)
            interrupted = ended.is_set()
            if not interrupted:
                _tell_addresses(group, output)
                if detach:
                    return
            by = hold(group, ended, _say)
            if by:
                _say(f"the group was stopped: {by}")
                return
            _say("stopping the group; press Ctrl-C again to kill it")
            stop(place, _say)
        except BaseException:
            stop(place, _say)
            raise
        if interrupted:
            raise typer.Exit(ExitCode.INTERRUPTED)


def _say(text: str) -> None:
    """Writes to the terminal, ignoring errors, so that the group can be stopped even if the terminal is gone."""
    with suppress(OSError):
        message(text)


@contextmanager
def _ending() -> Iterator[threading.Event]:
    """Yields an event that the first Ctrl-C, SIGTERM or SIGHUP sets; a second signal raises `KeyboardInterrupt`.

    A second SIGHUP does not count, because both the shell and the kernel send one when a terminal closes. Signals that the
    parent process ignores stay ignored, such as SIGHUP under nohup.
    """
    ended = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if ended.is_set() and number != signal.SIGHUP:
            raise KeyboardInterrupt
        ended.set()

    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in heard}
    try:
        yield ended
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _tell_addresses(group: ServiceGroup, output: Output) -> None:
    from ops.group.status import group_status

    found = group_status(group.home)
    if output is Output.JSON:
        write_json(found.document())
    else:
        _print(found)
    _flush()


def _flush() -> None:
    """Flushes standard output, so that a reader of a pipe gets the addresses now and not when the group stops."""
    sys.stdout.flush()


@app.command(epilog=examples("yatt down", "yatt down -o json"))
def down(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Stop this home's service group, whichever terminal it runs in, and clean up after a killed one.

    Runs driven by its worker stop after their current iteration, or after a minute in the middle of it. Nothing is lost.
    """
    from ops.group.control import stop

    place = Home.locate(home)
    ended = stop(place, message)
    if output is Output.JSON:
        write_json({"home": str(place.folder), "ended": ended})
    else:
        write(f"{place.folder}: the group is down" if ended else f"{place.folder}: no group was up")


@app.command(epilog=examples("yatt status", "yatt status -o json"))
def status(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show state, address, restarts and last trouble of the group's members; exit code 1 unless all are up."""
    from ops.group.status import UP, group_status

    found = group_status(Home.locate(home))
    if output is Output.JSON:
        write_json(found.document())
    else:
        _print(found)
    if found.state != UP:
        raise typer.Exit(ExitCode.FAILURE)


MEMBERS: Columns[MemberStatus] = (
    Column("member", lambda member: member.name),
    Column("state", lambda member: member.state),
    Column("address", lambda member: member.address),
    Column("pid", lambda member: member.pid, number=True),
    Column("for", lambda member: DurationCell(member.seconds)),
    Column("restarts", lambda member: member.restarts, number=True),
    Column("last trouble", lambda member: member.reason or member.last_death),
)


def _print(found: GroupStatus) -> None:
    write(f"{found.home}: {found.summary}")
    if found.members:
        write_list(MEMBERS, found.members)
    if found.prefect_client:
        write(f"to use Prefect's commands in another terminal: {found.prefect_client}")
        if found.password_file:
            write(f"the password of its UI is in {found.password_file}")
    if found.maintenance is not None:
        last = found.maintenance
        write(f"last maintenance: {moment(round(1000 * last.began_at))}, {last.trouble or 'all well'}")
    for run in found.undelivered:
        write(
            f"run {run.run}: {many(run.rows, 'row')} waiting to be sent to MLflow{f': {run.reason}' if run.reason else ''}"
        )
