"""`yatt placement`: explains device roles, compares them with another policy, and draws pictures of both.

Reads the run's ledger and work files; writes nothing but the requested picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.cli.commands.inspection.placement_tables import print_compared, print_explanation, print_gantt, print_replayed
from ops.presentation.output import console, message, write, write_json
from ops.presentation.placement_charts import write_comparison
from ops.presentation.placement_gantt import write_gantt
from ops.process import keep_caches_inside
from ops.terminal.lookup import find_run, iteration_range, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from flows.placement.record import PlacementRecord, RecordedPlacement


LARGEST = 10**9 - 1
"""Largest iteration or instance number accepted: more than any run has, and within a database integer."""
IterationArgument = Annotated[int, typer.Argument(metavar="ITERATION", min=1, max=LARGEST, help="Iteration number.")]
PICTURES = (".html", ".png")

EXPLAIN = ("yatt placement explain latest 12", "yatt placement explain judged-1 12 -o json")
REPLAY = (
    "yatt placement replay latest",
    "yatt placement replay judged-1 --policy split:2 --iterations 5:20",
    "yatt placement replay judged-1 --policy colocate --out colocate.html",
)
GANTT = ("yatt placement gantt latest 12", "yatt placement gantt judged-1 12 --out twelve.html")
app = typer.Typer(
    name="placement",
    epilog=examples(EXPLAIN[0], REPLAY[0], GANTT[0]),
    no_args_is_help=True,
    help="Explain why devices had their roles, and compare with other placement policies.",
)


@contextmanager
def _record(run: str, home: Path | None) -> Iterator[PlacementRecord]:
    from flows.placement.record import PlacementRecord

    place = Home.locate(home)
    keep_caches_inside(place)
    with opened_ledger(place) as ledger:
        yield PlacementRecord(ledger, place, find_run(ledger, run))


@app.command(epilog=examples(*EXPLAIN))
def explain(
    run: RunArgument, iteration: IterationArgument, home: HomeOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Explain an iteration's placement: what it was decided from, what was predicted, and what actually happened."""
    from flows.placement.explain import explain as explanation_of

    with _record(run, home) as record:
        found = explanation_of(record.at(iteration), record.seats(iteration), record.disks(iteration))
    if output is Output.JSON:
        write_json(asdict(found))
    else:
        print_explanation(found)


@app.command(epilog=examples(*REPLAY))
def replay(
    run: RunArgument,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="P",
            help="Policy to compare with: colocate, split:N (N instances judge), dynamic, or a policy's name.",
        ),
    ] = None,
    iterations: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Iterations A to B, both included. Default: all on the current line."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the comparison to FILE.html or FILE.png; needs --policy."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Repeat the recorded placement decisions, or use --policy to show what another policy would have decided and cost.

    Exit code 1, with the iterations that differ, if the run's own policy does not reproduce its recorded decisions.
    """
    if out is not None and policy is None:
        raise ConfigurationError("--out: the picture compares two policies; add --policy")
    picture = None if out is None else picture_file(out)
    with _record(run, home) as record:
        first, last = parse_range(iterations, record.last)
        placements = _with_bar(record.between(first, last), last - first + 1)
        sound = (
            _replay_own(record, placements, output)
            if policy is None
            else _replay_other(record=record, placements=placements, policy=policy, picture=picture, output=output)
        )
    if not sound:
        raise typer.Exit(ExitCode.FAILURE)


def _replay_own(record: PlacementRecord, placements: Iterable[RecordedPlacement], output: Output) -> bool:
    from flows.placement.replay import replay as replay_one

    rows = [replay_one(placement) for placement in placements]
    differing = [row.iteration for row in rows if not row.same]
    if output is Output.JSON:
        write_json(
            {"run": record.run, "same": not differing, "differing": differing, "decisions": [asdict(r) for r in rows]}
        )
    else:
        print_replayed(rows)
    return not differing


def _replay_other(
    record: PlacementRecord, placements: Iterable[RecordedPlacement], policy: str, picture: Path | None, output: Output
) -> bool:
    from flows.placement.replay import compare_all

    comparison = compare_all(record.run, policy, placements)
    if output is Output.JSON:
        write_json(asdict(comparison))
    else:
        print_compared(comparison)
    if picture is not None:
        with _drawing(picture):
            write_comparison(comparison, picture)
    return not comparison.differing


@app.command(epilog=examples(*GANTT))
def gantt(
    run: RunArgument,
    iteration: IterationArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw to FILE.html or FILE.png. Default: print as text.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show which role each instance had over time, and how much of the time it was busy."""
    from flows.placement.explain import gantt_of

    picture = None if out is None else picture_file(out)
    with _record(run, home) as record:
        found = gantt_of(record.at(iteration))
    if picture is not None:
        with _drawing(picture):
            write_gantt(found, picture)
    if output is Output.JSON:
        write_json(asdict(found))
    elif picture is None:
        print_gantt(found)
    else:
        idle = many(found.instances, "instance", "were idle", "was idle")
        write(f"{idle} for {found.idle_fraction:.1%} of {found.collect_s:.1f} s of collect")


def picture_file(path: Path) -> Path:
    """Returns the path if a picture can be drawn there. Raises `ConfigurationError` otherwise."""
    if path.suffix.lower() not in PICTURES:
        raise ConfigurationError(f"--out {path}: expected a name that ends in {' or '.join(PICTURES)}")
    if not path.resolve().parent.is_dir():
        raise ConfigurationError(f"--out {path}: there is no folder {path.resolve().parent}")
    return path


@contextmanager
def _drawing(path: Path) -> Iterator[None]:
    """Reports that a picture has been drawn. Raises `ConfigurationError` if its file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"--out {path}: cannot be written: {error.strerror or error}") from None
    message(f"drawn: {path}")


def parse_range(text: str | None, last: int) -> tuple[int, int]:
    """Returns the first and last iteration of a range such as 5:20.

    last: the newest iteration, used if the text is None.

    Raises `ConfigurationError`.
    """
    if not last:
        raise ConfigurationError("the run has no placement yet; the first one is recorded in iteration 1")
    if text is None:
        return 1, last
    return iteration_range(text, last)


def _with_bar(placements: Iterator[RecordedPlacement], total: int) -> Iterator[RecordedPlacement]:
    """Shows a progress bar on terminals, since a policy may take seconds per iteration."""
    from rich.progress import track

    screen = console(to_stderr=True)
    return iter(track(placements, "replaying", total, console=screen, transient=True, disable=not screen.is_terminal))
