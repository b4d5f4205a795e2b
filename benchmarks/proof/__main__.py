"""Trains a small model twice, kills one of the runs while it collects and while it learns, and compares the results.

Exits with 0 if weights, experience and metrics are equal, 1 if not, and 2 if an argument is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.common import Report, argument_parser, load_average, print_report
from benchmarks.proof.kills import Kill, fewest_iterations, plan_kills
from benchmarks.proof.runs import Proved, opened, prove_run
from benchmarks.proof.screen import open_screen
from benchmarks.proof.verdict import Verdict, as_details, comparison, figures_of, judge
from db.ledger import Ledger
from flows.run.home import Home
from yatt_core.errors import ExitCode, YattError
from yatt_core.spec import load_spec

ROOT = Path(__file__).parent.parent.parent
SPEC = ROOT / "configs" / "quickstart.yaml"
FOLDER = ROOT / "runs" / "proof"
ITERATIONS = 50
KILLS = 2
WIDTH_OF_FILES = 200
SURROUNDINGS = (
    "YATT_HOME",
    "YATT_LEDGER",
    "YATT_RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN_PATH",
    "PREFECT_API_URL",
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_BACKEND_STORE_URI",
)
"""Variables that may point to a ledger, cluster or servers outside the proof, which it must not kill."""


def main() -> int:
    """Runs the proof and returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args()
    # Ending the proof also ends its runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in SURROUNDINGS:
        os.environ.pop(name, None)
    types = [f"{place}.engine.dtype={arguments.dtype}" for place in ("rollout", "trainer")]
    overrides = [*types, *arguments.set, "name=proof", f"iterations={arguments.iterations}", f"seed={arguments.seed}"]
    if arguments.kills < 1:
        parser.error(f"--kills {arguments.kills}: at least 1")
    if arguments.iterations < (fewest := fewest_iterations(arguments.kills)):
        parser.error(f"--iterations {arguments.iterations}: {arguments.kills} kills need at least {fewest}")
    try:
        load_spec(arguments.spec, overrides)
        folder = _new_folder(arguments.folder)
    except (YattError, OSError) as error:
        parser.error(str(error))
    try:
        return _prove(arguments, overrides, folder)
    except YattError as error:
        sys.stderr.write(f"error: {error}\nthe files are in {folder}\n")
        return ExitCode.FAILURE
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; the files are in {folder}\n")
        return ExitCode.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argument_parser(__doc__)
    parser.prog = "python -m benchmarks.proof"
    parser.add_argument("--spec", type=Path, default=SPEC, help="what to train (default: the quickstart)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="type of both engines (default: float32)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of both runs; the kills have none (default: 0)")
    parser.add_argument(
        "--iterations", type=int, default=ITERATIONS, help=f"iterations of each run (default: {ITERATIONS})"
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, help=f"number of kills; collect and learn alternate (default: {KILLS})"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to create the home folder of both runs")
    return parser


def _new_folder(parent: Path) -> Path:
    """Creates a separate folder for each proof, named after the time."""
    parent.mkdir(parents=True, exist_ok=True)
    name = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while True:
        folder = parent / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder.resolve()


def _prove(arguments: argparse.Namespace, overrides: list[str], folder: Path) -> int:
    """Drives both runs, one after the other, and reports the result."""
    began = time.monotonic()
    load = load_average()
    home = Home(folder)
    plan = plan_kills(arguments.kills, arguments.iterations)
    # Not seeded: the moments are neither chosen nor reproducible.
    source = random.SystemRandom()
    with Ledger.open(home.ledger) as ledger, open_screen() as screen:

        def prove(label: str, kills: Sequence[Kill]) -> Proved:
            with opened(home=home, ledger=ledger, label=label, iterations=arguments.iterations, screen=screen) as run:
                return prove_run(run=run, spec=_short(arguments.spec), overrides=overrides, kills=kills, source=source)

        undisturbed = prove("undisturbed", [])
        killed = prove("killed", plan)
    verdict = judge(undisturbed, killed, [kill.phase for kill in plan])
    seconds = time.monotonic() - began
    if arguments.json:
        figures = figures_of(undisturbed, killed, verdict) | {"seconds": seconds}
        details = as_details(undisturbed, killed) | {"folder": str(folder)}
        report = Report("proof", figures, [arguments.seed], [load, load_average()], details=details)
        print_report(report, as_json=True)
    else:
        _print(undisturbed=undisturbed, killed=killed, verdict=verdict, seconds=seconds, folder=folder)
    return ExitCode.OK if verdict.holds else ExitCode.FAILURE


def _print(undisturbed: Proved, killed: Proved, verdict: Verdict, seconds: float, folder: Path) -> None:
    """Prints the table, the verdict, and the commands for a closer look."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH_OF_FILES)
    console.print(comparison(undisturbed, killed, verdict))
    console.print(str(verdict), style="bold green" if verdict.holds else "bold red")
    console.print(f"{seconds:.0f} s in all. Look closer:")
    for command in ("show", "logs", "audit verify"):
        console.print(f"  .venv/bin/yatt --home {_short(folder)} {command} {killed.results['run']}", soft_wrap=True)


def _short(path: Path) -> Path:
    """Returns the path as one would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
