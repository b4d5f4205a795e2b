"""Strikes one run on four hosts with host faults, and compares it with an undisturbed run of as many iterations.

`python -m tests.hosts.campaign --faults 42 --seed S --minutes 75` runs the torch engines in exact mode at temperature 1.
Each fault is a line on standard error and in FOLDER/campaign.log; the last line on standard output is one JSON object,
whose keys docs/testing.md explains. Exits with 0 if no fault did harm, 1 if one did, and 2 if an argument is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flows.run.creation import create_run
from flows.run.home import LEDGER_VARIABLE
from tests.hosts.campaign.bed import Bed
from tests.hosts.campaign.faults import Fault, Kind, schedule
from tests.hosts.campaign.operator import Operator
from tests.hosts.campaign.report import figures, holds
from tests.hosts.campaign.strikes import PROGRESS_SECONDS, Strikes
from tests.hosts.network import NoHostsError
from tests.recovery.ledger_watch import LedgerWatch
from yatt_core.errors import ExitCode, YattError
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parent / "hosts.yaml"
FAULTS = 42
MINUTES = 75.0
FEWEST_ITERATIONS = 3
AUDIT_SECONDS = 300.0
Say = Callable[[str], None]


def campaign(
    folder: Path, faults: Sequence[Fault], seed: int, seconds: float, overrides: Sequence[str], store: bool, say: Say
) -> dict[str, Any]:
    """Strikes a run for at most `seconds`, ends it, and compares it with an undisturbed run.

    store: whether the run has an object store and each host a home of its own.
    """
    with Bed(folder, store) as bed:
        os.environ[LEDGER_VARIABLE] = bed.ledger
        try:
            spec = load_spec(SPEC, [*bed.overrides, *overrides])
            began = time.monotonic()
            run, strikes = strike(bed, spec, faults, seed, seconds, say)
            minutes = (time.monotonic() - began) / 60
            say(f"{len(strikes.record.faults)} faults in {minutes:.1f} min; now {strikes.iteration} iterations without")
            quiet = undisturbed(bed, spec.model_copy(update={"iterations": strikes.iteration}), say)
            with watched(bed, run) as watch:
                told = figures(bed.ledger, watch, run, quiet, strikes.record)
            told["files_sound"] = int(files_are_sound(bed, run))
        finally:
            os.environ.pop(LEDGER_VARIABLE)
    return told | {"seed": seed, "minutes": round(minutes, 1)}


def strike(
    bed: Bed, spec: RunSpec, faults: Sequence[Fault], seed: int, seconds: float, say: Say
) -> tuple[str, Strikes]:
    """Creates a run and strikes it; returns its name and what was done to it, once it has been stopped in order."""
    run = create_run(bed.home, spec)
    operator = Operator(bed, run, bed.compute)
    with watched(bed, run) as watch:
        strikes = Strikes(bed, operator, watch, spec.recovery.lease_seconds, seed, say)
        try:
            strikes.begin()
            deadline = time.monotonic() + seconds
            for fault in faults:
                if time.monotonic() > deadline:
                    break
                strikes.strike(fault)
            strikes.wait_for(lambda: strikes.iteration >= FEWEST_ITERATIONS, PROGRESS_SECONDS)
            operator.stop()
            strikes.note_iteration()
        finally:
            operator.end()
            strikes.record.exits = operator.exits
            strikes.record.pauses_for_space = operator.pauses_for_space
            for line in operator.exits:
                say(f"a driver ended by itself: {line}")
    return run, strikes


def undisturbed(bed: Bed, spec: RunSpec, say: Say) -> str:
    """Drives a run on the same hosts to its end and returns its name."""
    run = create_run(bed.home, spec)
    operator = Operator(bed, run, bed.compute)
    with watched(bed, run) as watch:
        try:
            while watch.iteration() < spec.iterations or operator.driver_ended() is None:
                operator.tend()
                if operator.exits:
                    raise RuntimeError(f"the undisturbed driver ended: {operator.exits}")
                time.sleep(0.5)
        finally:
            operator.end()
    say(f"{run} has ended undisturbed")
    return run


def files_are_sound(bed: Bed, run: str) -> bool:
    """Returns whether every file that the ledger names is as it was when it was recorded, wherever it is kept."""
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(bed.home.folder), "audit", "verify", run]
    with bed.new_log("audit").open("w") as log:
        asked = bed.compute[0].start(command, env=bed.environment, stdout=log, stderr=subprocess.STDOUT)
    return asked.wait(AUDIT_SECONDS) == ExitCode.OK


@contextmanager
def watched(bed: Bed, run: str) -> Iterator[LedgerWatch]:
    """Opens the run's rows."""
    watch = LedgerWatch(bed.ledger, run)
    try:
        yield watch
    finally:
        watch.close()


@contextmanager
def screen(folder: Path, total: int, quiet: bool) -> Iterator[Say]:
    """Yields a function that writes a line to the log and the terminal, and moves the bar for each fault."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("faults"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        (folder / "campaign.log").open("a") as log,
        Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bars,
    ):
        bar = bars.add_task("", total=total)

        def say(line: str) -> None:
            line = f"{time.strftime('%H:%M:%S')} {line}"
            log.write(line + "\n")
            log.flush()
            if not quiet:
                bars.console.print(line)
            if "goes on" in line or "stuck" in line:
                bars.advance(bar)

        yield say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.hosts.campaign")
    parser.add_argument("--seed", type=int, default=0, help="determines the faults, their order and targets")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="maximum time for the faults")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"number of faults (default: {FAULTS})")
    parser.add_argument("--kinds", type=Kind, nargs="+", choices=list(Kind), default=list(Kind), help="only these")
    parser.add_argument("--quick", action="store_true", help="the storage is away for 20 s at most")
    parser.add_argument("--shared-home", action="store_true", help="one home for all hosts, and no object store")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON object to this file, too")
    arguments = parser.parse_args()
    # Ending the campaign also ends its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    faults = schedule(arguments.seed, arguments.faults, arguments.kinds, arguments.quick)
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    store = not arguments.shared_home
    try:
        with screen(folder, len(faults), arguments.json) as say:
            told = campaign(folder, faults, arguments.seed, 60 * arguments.minutes, arguments.set, store, say)
    except NoHostsError as error:
        sys.stderr.write(f"hosts cannot be simulated here: {error}\n")
        return ExitCode.FAILURE
    except YattError as error:
        sys.stderr.write(f"error: {error}\nthe files are in {folder}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; the files are in {folder}\n")
        return ExitCode.INTERRUPTED
    if holds(told):
        shutil.rmtree(folder)
    else:
        sys.stderr.write(f"kept for inspection: {folder}\n")
    if arguments.output:
        arguments.output.write_text(json.dumps(told, indent=1) + "\n")
    sys.stdout.write(json.dumps(told) + "\n")
    return ExitCode.OK if holds(told) else ExitCode.FAILURE


if __name__ == "__main__":
    sys.exit(main())
