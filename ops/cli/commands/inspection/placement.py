"""`yatt placement`: why devices had the roles they had, what another policy would have made of it, and a picture of it.

Reads the ledger and the work files of the run; writes nothing but the picture that was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import console, message, write, write_json
from ops.process import keep_caches_inside
from yatt_core.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flows.placement.record import PlacementRecord, RecordedPlacement

placement_app = typer.Typer(
    no_args_is_help=True, help="Ask why devices had their roles, and what others would have cost."
)

LARGEST = 10**9 - 1
"""Of iterations and instances: more than any run has, and no more than a database takes."""
IterationArgument = Annotated[int, typer.Argument(metavar="ITERATION", min=1, max=LARGEST, help="The iteration.")]
PICTURES = (".html", ".png")

EXPLAIN = ("yatt placement explain latest 12", "yatt placement explain judged-1 12 -o json")
REPLAY = (
    "yatt placement replay latest",
    "yatt placement replay judged-1 --policy split:2 --iterations 5:20",
    "yatt placement replay judged-1 --policy colocate --out colocate.html",
)
GANTT = ("yatt placement gantt latest 12", "yatt placement gantt judged-1 12 --out twelve.html")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(placement_app, name="placement", epilog=examples(EXPLAIN[0], REPLAY[0], GANTT[0]))


@contextmanager
def _record(run: str, home: Path | None) -> Iterator[PlacementRecord]:
    from flows.placement.record import PlacementRecord
    from flows.run.home import Home

    place = Home.locate(home)
    keep_caches_inside(place)
    with opened_ledger(place) as ledger:
        yield PlacementRecord(ledger, place, find_run(ledger, run))


@placement_app.command(epilog=examples(*EXPLAIN))
def explain(
    run: RunArgument, iteration: IterationArgument, home: HomeOption = None, output: OutputOption = Output.TEXT
) -> None:
    """Say why an iteration was placed as it was: from what, what was predicted, and what then happened."""
    from flows.placement.explain import explain as explanation_of
    from ops.presentation.placement_tables import print_explanation

    with _record(run, home) as record:
        found = explanation_of(record.at(iteration))
    if output is Output.JSON:
        write_json(asdict(found))
    else:
        print_explanation(found)


@placement_app.command(epilog=examples(*REPLAY))
def replay(
    run: RunArgument,
    policy: Annotated[
        str | None,
        typer.Option(metavar="P", help="Another policy: colocate, split:N (N instances judge), dynamic, or a name."),
    ] = None,
    iterations: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only these, both included. Default: all of the current line.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the comparison with another policy: FILE.html or FILE.png."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make the recorded decisions once more; or, with --policy, say what another policy would have decided and cost.

    Exit code 1 if the policy in force does not make a decision as it was recorded, with the iterations that differ.
    """
    if out is not None and policy is None:
        raise ConfigurationError("--out: there is a picture of two policies only; add --policy")
    picture = None if out is None else picture_file(out)
    with _record(run, home) as record:
        first, last = parse_range(iterations, record.last)
        placements = _with_bar(record.between(first, last), last - first + 1)
        sound = (
            _replay_own(record, placements, output)
            if policy is None
            else _replay_other(record, placements, policy, picture, output)
        )
    if not sound:
        raise typer.Exit(ExitCode.FAILURE)


def _replay_own(record: PlacementRecord, placements: Iterable[RecordedPlacement], output: Output) -> bool:
    from flows.placement.replay import replay as replay_one
    from ops.presentation.placement_tables import print_replayed

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
    from ops.presentation.placement_charts import write_comparison
    from ops.presentation.placement_tables import print_compared

    comparison = compare_all(record.run, policy, placements)
    if output is Output.JSON:
        write_json(asdict(comparison))
    else:
        print_compared(comparison)
    if picture is not None:
        with _drawing(picture):
            write_comparison(comparison, picture)
    return not comparison.differing


@placement_app.command(epilog=examples(*GANTT))
def gantt(
    run: RunArgument,
    iteration: IterationArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: FILE.html or FILE.png. Default: as text.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show which role each instance had when, and how much of that was work."""
    from flows.placement.explain import gantt_of
    from ops.presentation.placement_gantt import write_gantt
    from ops.presentation.placement_tables import print_gantt

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
        write(
            f"idle share {found.idle_fraction:.1%} of {found.instances} instances in {found.collect_s:.1f} s of collect"
        )


def picture_file(path: Path) -> Path:
    """The path of a picture that can be drawn. Raises `ConfigurationError`."""
    if path.suffix.lower() not in PICTURES:
        raise ConfigurationError(f"--out {path}: right would be a name that ends in {' or '.join(PICTURES)}")
    if not path.resolve().parent.is_dir():
        raise ConfigurationError(f"--out {path}: there is no folder {path.resolve().parent}")
    return path


@contextmanager
def _drawing(path: Path) -> Iterator[None]:
    """Says that a picture is drawn. Raises `ConfigurationError` where its file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"--out {path}: cannot be written: {error.strerror or error}") from None
    message(f"drawn: {path}")


def parse_range(text: str | None, last: int) -> tuple[int, int]:
    """The first and the last iteration that are meant. last: the newest there is. Raises `ConfigurationError`."""
    if not last:
        raise ConfigurationError("the run has no placement yet; the first is that of iteration 1")
    if text is None:
        return 1, last
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text, re.ASCII)
    if match is None:
        raise ConfigurationError(f"--iterations {text!r:.80}: right would be A:B, such as 1:{last}")
    first, to = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= to <= last:
        raise ConfigurationError(f"--iterations {text}: right would be A:B with 1 <= A <= B <= {last}")
    return first, to


def _with_bar(placements: Iterator[RecordedPlacement], total: int) -> Iterator[RecordedPlacement]:
    """A bar on terminals, since a policy may take seconds for an iteration."""
    from rich.progress import track

    screen = console(to_stderr=True)
    return iter(track(placements, "replaying", total, console=screen, transient=True, disable=not screen.is_terminal))
