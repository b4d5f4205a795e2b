"""`yatt audit verify`: recomputes every digest in a run's ledger. `yatt audit weights`: asks the live actors of a run.
`yatt audit home`: what concerns no run that exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns, MomentCell
from ops.presentation.output import console, message, write, write_json, write_list
from ops.process import keep_caches_inside
from ops.terminal.lookup import LATEST, find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many
from yatt_core.errors import ExitCode

if TYPE_CHECKING:
    from db.write.events import EventRow
    from flows.reports.audit import AuditReport, Progress
    from flows.reports.live_weights import WeightsReport

app = typer.Typer(
    name="audit",
    epilog=examples("yatt audit verify latest", "yatt audit weights latest"),
    no_args_is_help=True,
    help="Check that a run's files, metrics and live weights match its ledger.",
)


@app.command(epilog=examples("yatt audit verify latest", "yatt audit verify quickstart-1 -o json"))
def verify(run: RunArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Recompute a run's audit chain and all digests from its files, its ledger and MLflow.

    Exit code 0 if everything agrees; otherwise 1, with the first mismatch and its location. The run may be active meanwhile.
    """
    from flows.reports.audit import verify_run
    from ops.integrations.mlflow_reader import reader_of

    place = Home.locate(home)
    keep_caches_inside(place)
    with opened_ledger(place) as ledger, _progress() as progress:
        name = find_run(ledger, run)
        report = verify_run(
            ledger=ledger,
            run=name,
            folder=place.run_folder(name),
            reader=reader_of(place, ledger, name),
            progress=progress,
        )
    if output is Output.JSON:
        write_json(asdict(report) | {"sound": report.sound})
    else:
        _print(report)
    if not report.sound:
        raise typer.Exit(ExitCode.FAILURE)


HOME_LINKS: Columns[EventRow] = (
    Column("link", lambda link: link.seq, number=True),
    Column("at", lambda link: MomentCell(link.at)),
    Column("by", lambda link: link.body.get("by", "-")),
    Column("what", lambda link: link.kind),
    Column("why", lambda link: link.body.get("why", "")),
)


@app.command(name="home", epilog=examples("yatt audit home", "yatt audit home -o json"))
def show_home(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show the audit chain of the home: runs that were refused to somebody, and why.

    Exit code 0 if every link follows from the previous one; otherwise 1.
    """
    with opened_ledger(Home.locate(home)) as ledger:
        links = ledger.home_events.links()
        broken = ledger.home_events.verify()
    if output is Output.JSON:
        write_json({"links": [asdict(link) for link in links], "broken": broken})
    else:
        write_list(HOME_LINKS, links)
    if broken is not None:
        message(f"link {broken} is missing or was altered")
        raise typer.Exit(ExitCode.FAILURE)


@app.command(epilog=examples("yatt audit weights latest", "yatt audit weights quickstart-1 -o json"))
def weights(
    run: RunArgument = LATEST,
    wait: Annotated[float, typer.Option(help="Seconds to wait for actors that are busy.", min=1.0)] = 300.0,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare the weights in the memory of a running run's engines with the trainer's, and the trainer's with the ledger.

    Exit code 0 if they agree, otherwise 1, with the tensors that differ; 2 if nothing drives the run. Engines whose weights
    cannot be read, such as those of an architecture that only vLLM knows, are listed as not compared.
    """
    from flows.reports.live_weights import audit_weights

    place = Home.locate(home)
    keep_caches_inside(place)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
        report = audit_weights(ledger, name, place.run_folder(name), wait)
    if output is Output.JSON:
        write_json(asdict(report) | {"sound": report.sound})
    else:
        _print_weights(report)
    if not report.sound:
        raise typer.Exit(ExitCode.FAILURE)


def _print_weights(report: WeightsReport) -> None:
    write(f"version {report.version} of {report.run}")
    write(f"  {'trainer':<12}{report.trainer or 'not computed: its ranks hold one model together'}")
    write(f"  {'ledger':<12}{report.committed or 'has no digest of this version'}")
    for engine in report.engines:
        said = "not compared" if not engine.compared else "agrees with the trainer"
        if engine.differing:
            said = f"differs from the trainer in {many(len(engine.differing), 'tensor')}: {', '.join(engine.differing)}"
        write(f"  {engine.name:<12}{said}")


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows a progress bar for each check, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(to_stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=screen,
        disable=not screen.is_terminal,
    ) as bars:
        tasks = {}

        def show(check: str, done: int, total: int) -> None:
            if check not in tasks:
                tasks[check] = bars.add_task(check, total=total)
            bars.update(tasks[check], completed=done, total=total)

        yield show


def _print(report: AuditReport) -> None:
    for name, count in report.checked.items():
        write(f"{name:<12}{count} agree")
    if report.pending:
        first = report.pending[0]
        place = f"iteration {first.iteration} of branch {first.branch}"
        write(f"not yet sent to MLflow: {many(len(report.pending), 'iteration')}, starting with {place}")
    if report.elsewhere:
        first = report.elsewhere[0]
        place = f"iteration {first.iteration} of branch {first.branch}"
        write(f"columns not on this machine: {many(len(report.elsewhere), 'iteration')}, starting with {place}")
    if report.disagreement is None:
        write(f"{report.run} is sound")
        return
    found = report.disagreement
    write(f"{report.run} is not sound: {found.check}")
    write(f"  location  {found.place}\n  expected  {found.expected}\n  found     {found.found}")
