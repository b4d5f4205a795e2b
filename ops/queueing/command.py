"""`yatt queue`: shares devices between runs, which start when all their devices are free and give way to more urgent ones.

Consumes specs or runs; writes messages to standard error, and tables or one JSON object to standard output.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.run.home import Home
from ops.preflight.home_folder import check_folder, ledger_file
from ops.presentation.output import message, write, write_json
from ops.process import keep_caches_inside
from ops.queueing.tables import print_queue
from ops.terminal.completion import complete_run
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, RunArgument, examples
from ops.terminal.people import named
from yatt_core.cluster.gpus import local_gpus
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

SPEC_HELP = "Spec of a new run in YAML. Leave it out to submit an existing run with --run."
LIST = ("yatt queue", "yatt queue -o json")
SUBMIT = (
    "yatt queue submit configs/quickstart.yaml --pool main",
    "yatt queue submit configs/quickstart.yaml --pool spot,main --priority 2 --project chat --auto-checkpoints",
    "yatt queue submit --run quickstart-3",
)
app = typer.Typer(
    name="queue",
    epilog=examples(*LIST, SUBMIT[0], "yatt queue serve"),
    invoke_without_command=True,
    help="Share devices between runs: pools, priorities, fair share, preemption. Without a command, list the queue.",
)
LONGEST_NOTICE = 30 * 24 * 3600
ByOption = Annotated[str | None, typer.Option(metavar="NAME", help="Who asks. Default: the login name.")]
PoolArgument = Annotated[str, typer.Argument(metavar="POOL", help="Name of a pool.")]


NEGATIVE = {"ignore_unknown_options": True}
"""Has -3 read as an argument."""


@app.callback()
def show(context: typer.Context, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List pools, and the runs that hold devices, wait for them, or ended last."""
    if context.invoked_subcommand is not None:
        return
    from db.ledger import Ledger
    from flows.queueing.pools_file import pools_file, read_pools
    from ops.queueing.view import queue_view

    place = Home.locate(home)
    if pools_file(place).exists():
        read_pools(place)
        if (file := ledger_file(place)) is not None and not file.exists():
            Ledger.open(place.ledger).close()  # a home may have pools before it has runs
    with opened_ledger(place) as ledger:
        view = queue_view(ledger, place)
    if output is Output.JSON:
        write_json(asdict(view))
    else:
        print_queue(view)


@app.command(epilog=examples("yatt queue init"))
def init(home: HomeOption = None) -> None:
    """Write a first pools.yaml with this machine's GPUs, or its CPU cores, as one pool."""
    from flows.queueing.pools_file import pools_file, write_first_pools

    place = Home.locate(home)
    write_first_pools(place, len(local_gpus()), len(os.sched_getaffinity(0)))
    write(f"{pools_file(place)}: edit it to add pools, prices, limits and quotas")


@app.command(epilog=examples(*SUBMIT))
def submit(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC]", help=SPEC_HELP)] = None,
    overrides: OverridesOption = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="An existing run in place of SPEC.", autocompletion=complete_run),
    ] = None,
    pool: Annotated[str, typer.Option(metavar="A,B,...", help="Pools that it may use, the preferred one first.")] = "",
    project: Annotated[str, typer.Option(metavar="NAME", help="Project, for quotas and fair share.")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Higher numbers go first and may preempt lower ones.")] = 0,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices that it holds. Default: what its spec needs.")
    ] = None,
    auto_checkpoints: Annotated[
        bool, typer.Option("--auto-checkpoints", help="Choose the checkpoint interval from the run's own times.")
    ] = False,
    by: ByOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Put a run into the queue. The scheduler (`yatt up` or `yatt queue serve`) starts it when its devices are free."""
    from flows.run.creation import create_run, current_spec
    from ops.preflight.run import check_before_start
    from ops.queueing.submitting import SubmissionOptions, checked_submission
    from ops.queueing.submitting import submit as put
    from yatt_core.spec import load_spec

    place = Home.locate(home)
    owner = named(by, "submits the run")
    asked = SubmissionOptions(
        pools=[name for name in pool.split(",") if name],
        project=project,
        priority=priority,
        devices=devices,
        auto_checkpoints=auto_checkpoints,
    )
    if (spec is None) == (run is None) or (run is not None and overrides):
        raise ConfigurationError("expected either SPEC, with --set if need be, or --run RUN")
    if spec is not None:
        checked = fetched(place.folder, load_spec(spec, overrides or (), with_files=True), weights=False)
        checked_submission(place, checked, asked, owner)  # before the run exists
        for warning in check_before_start(place.folder, checked).warnings:
            message(f"warning: {warning}")
        run = create_run(place, fetched(place.folder, checked), by=owner)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run or "")
        submission = put(home=place, ledger=ledger, run=name, spec=current_spec(ledger, name), asked=asked, by=owner)
        unserved = _unserved(place)
    if output is Output.JSON:
        write_json({"run": name, **asdict(submission)})
        return
    write(f"{name} waits for {many(submission.devices, 'device')} of {' or '.join(submission.pools)}")
    if unserved:
        message("no scheduler is running; start one with `yatt up` or `yatt queue serve`")


@app.command(epilog=examples("yatt queue priority quickstart-3 5"), context_settings=NEGATIVE)
def priority(
    run: RunArgument,
    level: Annotated[int, typer.Argument(metavar="N", min=-100, max=100, help="The new priority.")],
    by: ByOption = None,
    home: HomeOption = None,
) -> None:
    """Change a run's priority."""
    _change(home, run, by, priority=level)


@app.command(epilog=examples("yatt queue pause quickstart-3"))
def pause(run: RunArgument, by: ByOption = None, home: HomeOption = None) -> None:
    """Hold a run back; if it holds devices, it stops at its next safe point and gives them back."""
    _change(home, run, by, wanted="hold")


@app.command(epilog=examples("yatt queue resume quickstart-3"))
def resume(run: RunArgument, by: ByOption = None, home: HomeOption = None) -> None:
    """Let a run that was held back wait for devices again."""
    _change(home, run, by, wanted="run")


@app.command(epilog=examples("yatt queue remove quickstart-3"))
def remove(run: RunArgument, by: ByOption = None, home: HomeOption = None) -> None:
    """Take a run out of the queue; if it holds devices, it stops at its next safe point first. The run itself is kept."""
    _change(home, run, by, wanted="remove")


@app.command(epilog=examples("yatt queue devices spot --lost 0,1 --within 60", "yatt queue devices spot --back 0,1"))
def devices(
    pool: PoolArgument,
    lost: Annotated[str, typer.Option(metavar="N,N,...", help="Devices that are reclaimed or broken.")] = "",
    within: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Notice; 0: they are gone already.")] = 0.0,
    back: Annotated[str, typer.Option(metavar="N,N,...", help="Devices that can be used again.")] = "",
    by: ByOption = None,
    home: HomeOption = None,
) -> None:
    """Report devices that go away or come back; runs on them stop in time if they can, and start again elsewhere."""
    from flows.queueing.pools_file import read_pools

    if not within <= LONGEST_NOTICE:  # also if it is no number
        raise ConfigurationError(f"--within {within}: expected at most {LONGEST_NOTICE:,} seconds")
    place = Home.locate(home)
    who = named(by, "reports the devices")
    numbers = read_pools(place).pool(pool).numbers
    gone, returned = (_device_numbers(option, text, numbers) for option, text in (("--lost", lost), ("--back", back)))
    if not gone and not returned:
        raise ConfigurationError("expected --lost, --back or both, such as --lost 0,1")
    if both := sorted(set(gone) & set(returned)):
        raise ConfigurationError(
            f"--lost and --back both name {', '.join(map(str, both))}; a device is either lost or back"
        )
    with opened_ledger(place) as ledger:
        ledger.submissions.report_outage(pool, gone, within, who)
        ledger.submissions.end_outage(pool, returned)
    write(f"{pool}: {many(len(gone), 'device')} lost, {len(returned)} back")


@app.command(epilog=examples("yatt queue serve"))
def serve(home: HomeOption = None) -> None:
    """Run the scheduler until Ctrl-C; the runs' drivers go on without it. `yatt up` runs one, too."""
    from ops.queueing.scheduler import serve as run_service

    place = Home.locate(home)
    check_folder(place.folder)
    place.folder.mkdir(parents=True, exist_ok=True)
    keep_caches_inside(place)
    run_service(place)


CHANGES = {"hold": "is held back", "run": "waits for devices again", "remove": "is being removed from the queue"}


def _change(
    home: Path | None, run: str, by: str | None, *, wanted: str | None = None, priority: int | None = None
) -> None:
    who = named(by, "changes the queue")
    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        ledger.submissions.change(name, who, wanted=wanted, priority=priority)
    write(f"{name} {CHANGES[wanted] if wanted else f'has priority {priority}'}")


def _device_numbers(option: str, text: str, known: tuple[int, ...]) -> list[int]:
    words = [word for word in text.split(",") if word]
    found = [int(word) for word in words if word.isdecimal() and int(word) in known]
    if len(found) < len(words):
        raise ConfigurationError(f"{option} {text}: expected numbers of its devices, separated by commas: {known}")
    return found


def _unserved(home: Home) -> bool:
    with opened_ledger(home) as ledger:
        row = ledger.queue.scheduler()
    return row is None or row.holder is None or row.expires_in <= 0
