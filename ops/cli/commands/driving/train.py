"""`yatt train` and `yatt resume`: drive a run in the foreground, or start its driver in the background.

Consumes a spec or a run's name; writes progress to standard error and, at the end, a summary or one JSON object to standard
output. Problems that prevent a start (spec, model, disk) are reported before anything is written.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from db.core.errors import LeaseHeld, LedgerError, LedgerUnavailable
from flows.run.home import Home
from ops.cli.commands.driving.stopping import is_driven
from ops.presentation.advice import RESUME, after_failure
from ops.presentation.output import message, write, write_json
from ops.presentation.progress import watching
from ops.process import keep_caches_inside
from ops.terminal.failures import exit_code
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, RunArgument, SpecArgument, examples
from ops.terminal.people import acting_name
from yatt_core.errors import ConfigurationError, ExitCode, YattError

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.driver.run_status import SessionOutcome
    from flows.run.creation import OpenedRun
    from flows.run.results import RunResults

app = typer.Typer()

DetachOption = Annotated[
    bool,
    typer.Option(
        "--detach", "-d", help="Drive the run in a background process; return once it holds the run, or has failed."
    ),
]

UntilOption = Annotated[
    int | None,
    typer.Option(
        "--until", metavar="K", min=0, help="Stop after this iteration, with a checkpoint. Default: the run's target."
    ),
]


@app.command(
    epilog=examples(
        "yatt train configs/quickstart.yaml",
        "yatt train configs/quickstart.yaml --set seed=1 --set iterations=50",
        "yatt train configs/quickstart.yaml -o json > result.json",
        "yatt train configs/quickstart.yaml --detach",
    )
)
def train(
    spec: SpecArgument,
    overrides: OverridesOption = None,
    until: UntilOption = None,
    detach: DetachOption = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a new run and train it to its target; Ctrl-C stops it at the next safe point."""
    from ops.preflight.run import check_before_start
    from yatt_core.spec import load_spec

    place = Home.locate(home)
    checked = fetched(place.folder, load_spec(spec, overrides or (), with_files=True), weights=False)
    for warning in check_before_start(place.folder, checked).warnings:
        message(f"warning: {warning}")
    from flows.driver import services
    from flows.run.creation import new_run
    from ops.group.address import server_of_runs

    _say_beyond(until, checked.iterations)
    services.check_surroundings(server_of_runs(place))
    with new_run(place, fetched(place.folder, checked), by=acting_name()) as created:
        if detach:
            _detach(created.ledger, place, created.run, output, until=until)
        else:
            drive_opened(created, output, until=until)


@app.command(
    epilog=examples(
        "yatt resume latest",
        "yatt resume quickstart-3 --set iterations=200 -o json",
        "yatt resume quickstart-3 --new-code",
        "yatt resume quickstart-3 --unless-paused",
        "yatt resume quickstart-3 --now",
        "yatt resume latest --detach",
        "yatt resume latest --until 100",
    )
)
def resume(
    run: RunArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the spec from the next iteration on."),
    ] = None,
    new_code: Annotated[
        bool,
        typer.Option(
            "--new-code",
            help="Use the Python files that the spec names (rewards, tools, callbacks, ...) as they are now. Samples of the open "
            "iteration that were scored otherwise are discarded.",
        ),
    ] = False,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="With --set: discard samples of the open iteration that were made with the old values."
        ),
    ] = False,
    now: Annotated[
        bool,
        typer.Option(
            "--now", help="If its driver waits for something that is away, have it look at once whether that is back."
        ),
    ] = False,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Replay updates even if the environment has changed since.")
    ] = False,
    unless_paused: Annotated[
        bool,
        typer.Option(
            "--unless-paused",
            help="If the run is paused, print the reason, leave it paused and exit with 0. For automated starts.",
        ),
    ] = False,
    until: UntilOption = None,
    detach: DetachOption = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Resume a run after its last commit, whether it was stopped, failed or was killed.

    A change of the spec is recorded as a new revision in the audit chain. Settings that affect updates can be changed
    only at a checkpoint, which every orderly stop leaves. A different number of trainer ranks is such a change: results
    agree within tolerance, and the change is marked.
    """
    from flows.branching.branches import finish_fork, revise
    from flows.branching.safe_point import RevisionOptions
    from flows.gates.waiting import is_decided

    if discard and not overrides:
        raise ConfigurationError("--discard: expected beside --set; without a change of the spec, nothing is discarded")
    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
        finish_fork(place, ledger, name)
        if now and ledger.waits.ask(name, acting_name()):
            _say_asked(ledger, name, output)
            return
        row = ledger.runs.find(name)
        decided = is_decided(ledger, name)
    if until is not None and until < row.iteration:
        raise ConfigurationError(
            f"--until {until}: run {name} has committed iteration {row.iteration}; expected {row.iteration} or more. "
            f"`yatt rollback {name} --to {until}` returns to an earlier one"
        )
    if row.state == "paused":
        message(f"{name} was paused: {row.state_reason}")
        if unless_paused and not decided:
            _leave(place, name, row.state_reason, output)
            return
    if overrides or new_code:
        number = revise(place, name, overrides or (), acting_name(), asked=RevisionOptions(new_code, discard))
        message(f"{name}: revision {number} of the spec is now in effect")
        with opened_ledger(place) as ledger:
            row = ledger.runs.find(name)
    _say_beyond(until, row.target_iterations)
    if detach:
        with opened_ledger(place) as ledger:
            _detach(ledger=ledger, home=place, run=name, output=output, accept_drift=accept_drift, until=until)
    else:
        drive(home=place, run=name, output=output, accept_drift=accept_drift, until=until)


def _say_beyond(until: int | None, target: int) -> None:
    """Says that a run ends at its target, if it is asked to stop after a later iteration only."""
    if until is not None and until > target:
        message(
            f"--until {until} is beyond the run's target, so it ends at iteration {target}; `--set iterations=N` moves it"
        )


def _say_asked(ledger: Ledger, run: str, output: Output) -> None:
    """Says that the driver of a run that waits looks at once whether it can go on."""
    (row,) = ledger.waits.of([run]).values()
    if output is Output.JSON:
        write_json({"run": run, "state": "waiting", "asked": True, "dependency": row.dependency})
    else:
        write(f"{run} waits for {row.dependency}; its driver looks at once whether that is back")


def _detach(
    ledger: Ledger, home: Home, run: str, output: Output, accept_drift: bool = False, until: int | None = None
) -> None:
    """Starts a driver in the background, and says how to follow it once it holds the lease."""
    from db.core.subjects import of_run
    from flows.run.changed_versions import said_of_versions
    from ops.terminal.detached import start_detached

    line = ledger.overview.line(run)
    if is_driven(line):
        raise LeaseHeld(of_run(run), line.holder or "", line.lease_expires_in)
    if changed := said_of_versions(ledger, run):
        message(changed)
    message(f"starting a driver of {run} in the background")
    started = start_detached(home=home, ledger=ledger, run=run, accept_drift=accept_drift, until=until)
    state = ledger.runs.find(run).state
    follow = [f"yatt watch {run}", f"yatt logs {run} -f", f"yatt stop {run}"]
    if output is Output.JSON:
        facts = {"run": run, "pid": started.pid, "state": state, "log": str(started.log), "follow": follow}
        write_json(facts | {"exit_code": started.exit_code})
    if started.exit_code is not None:
        message(started.said)
        raise typer.Exit(started.exit_code)
    if output is Output.TEXT:
        write(f"{run} is driven by process {started.pid}; its output goes to {started.log}")
        write("next commands")
        for command in follow:
            write(f"  {command}")


def _leave(home: Home, run: str, reason: str, output: Output) -> None:
    """Reports a paused run's status and leaves the run paused."""
    from flows.run.results import run_results

    message(f"it stays paused{'' if RESUME in reason else f'; `{RESUME} {run}` continues it'}")
    if output is Output.JSON:
        with opened_ledger(home) as ledger:
            write_json(asdict(run_results(ledger, run)))


def _advise(opened: OpenedRun, error: BaseException) -> None:
    """Writes what is kept after a session has failed, and what to do next."""
    from yatt_core.spec.reading.code_digests import files_by_key

    files: list[str] = []
    try:
        begun = opened.ledger.runs.find(opened.run).iteration >= 0
        files = [str(code.path) for code in files_by_key(opened.spec).values()]
    except (LedgerError, YattError):  # perhaps the failure itself
        begun = True
    advice = after_failure(error, opened.run, begun, files)
    if advice is not None:
        message(advice)


def drive(home: Home, run: str, output: Output, accept_drift: bool = False, until: int | None = None) -> None:
    """Opens a run, and drives it as `drive_opened` does."""
    from flows.run.creation import opened_run

    with opened_run(home, run) as opened:
        drive_opened(opened, output, accept_drift, until)


def drive_opened(opened: OpenedRun, output: Output, accept_drift: bool = False, until: int | None = None) -> None:
    """Runs one driver session in this process, shows its progress, and reports the results.

    The ledger is opened once and the spec loaded once for all of it.

    until: the iteration after which it stops; None for the run's target.
    """
    from flows.launch import run_session
    from ops.evaluators import start_evaluators
    from ops.group.address import server_of_runs
    from ops.group.pages import live_pages
    from ops.integrations.apprise_notifier import AppriseNotifier
    from ops.integrations.trackers import trackers_of
    from ops.presentation.run_summary import print_summary
    from ops.queries.links import run_links
    from yatt_core.rewards.process import reward_process

    home = opened.home
    ledger = opened.ledger
    run = opened.run
    spec = opened.spec
    reward_process().close()  # the checks before the run may have started it; controllers have their own
    keep_caches_inside(home)
    _request(ledger, run, accept_drift)
    pages = live_pages(home)
    notifier = AppriseNotifier.from_environment(spec.guards.notify)
    trackers = trackers_of(home, spec)
    message(f"run {run} in {home.run_folder(run)}")
    start_evaluators(home, run, spec)
    try:
        with watching(run, lambda: spec.sft is not None) as observer:
            find_server = server_of_runs(home)
            outcome = run_session(
                home=home,
                name=run,
                observer=observer,
                trackers=trackers,
                accept_drift=accept_drift,
                notifier=notifier,
                pages=pages,
                find_server=find_server,
                until=until,
                opened=opened,
            )
    except BaseException as error:
        if exit_code(error) != ExitCode.LEASE_HELD:
            _advise(opened, error)
        raise
    reported: SessionOutcome | RunResults = outcome
    try:
        reported = results = _results_now(ledger, run)
        if output is Output.TEXT:
            links = run_links(ledger, run, pages)
            print_summary(ledger=ledger, home=home, results=results, spec=spec, links=links)
    except LedgerUnavailable as error:  # it says no more of the session, which has ended as its outcome says
        message(f"run {run} is {outcome.state}; its results cannot be shown now: {error}")
    if output is Output.JSON:
        write_json(asdict(reported))
    raise typer.Exit(outcome.exit_code)


def _request(ledger: Ledger, run: str, accept_drift: bool) -> None:
    """Records who starts a driver, unless the newest link of the audit chain says it: then this process was started for that.

    A run that has a driver already refuses another, so that nothing is to be recorded.
    """
    from db.write.events import RESUME_REQUESTED

    newest = next(iter(ledger.browse.events(run, 1, None, ())), None)
    if not is_driven(ledger.overview.line(run)) and (newest is None or newest.kind != RESUME_REQUESTED):
        body = {"by": acting_name(), "reason": "", "accept_drift": accept_drift}
        ledger.events.append(run, RESUME_REQUESTED, body)


def _results_now(ledger: Ledger, run: str) -> RunResults:
    """Returns the run's results, counting this process's whole wall time for its newest session."""
    import psutil

    from flows.run.results import run_results, session_seconds

    results = run_results(ledger, run)
    sessions = session_seconds(ledger, ledger.overview.show(run))
    own = time.time() - psutil.Process().create_time()
    newest = sessions[max(sessions)] if sessions else 0.0  # a session whose budget is already exhausted records nothing
    return replace(results, seconds=results.seconds - newest + own)
