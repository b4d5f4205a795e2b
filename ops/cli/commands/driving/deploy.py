"""`yatt deploy`: creates a Prefect deployment that drives a run in scheduled windows.

Consumes a spec, from which it creates a run, or an existing run, and a schedule; produces the deployment on Prefect's server or
its entry in a prefect.yaml. Errors are reported before a run is created. Deploying the same name again keeps its run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.driver.windows import Window, parse_duration
from flows.run.home import Home
from ops.presentation.output import message, write, write_json
from ops.terminal.deployment_server import connect_to_server
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, examples
from ops.terminal.people import acting_name
from yatt_core.errors import ConfigurationError, InfrastructureError

if TYPE_CHECKING:
    from flows.schedule.deployments import Deployment
    from flows.schedule.schedule_times import Schedule
    from flows.schedule.scheduled import WindowFlow
    from yatt_core.spec import RunSpec

app = typer.Typer()

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
SHOWN_WINDOWS = 3
SHORTEST_INTERVAL = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class When:
    """The schedule as requested on the command line."""

    cron: str | None
    interval: str | None
    manual: bool
    longest: str | None
    timezone: str | None


@dataclass(frozen=True, slots=True)
class Driven:
    """A run and its owner, which distinguishes it from a run of the same name in another ledger (`flows.run.owner`)."""

    run: str
    owner: str


@app.command(
    epilog=examples(
        'yatt deploy configs/quickstart.yaml --cron "0 22 * * *" --timezone Europe/Berlin --for 8h',
        "yatt deploy configs/quickstart.yaml --name hourly --interval 1h",
        "yatt deploy --run quickstart-3 --name by-hand --manual && yatt window by-hand",
        "yatt deploy configs/quickstart.yaml --interval 1d --for 4h --new-run-each-time",
        'yatt deploy configs/quickstart.yaml --cron "0 22 * * *" --file prefect.yaml && prefect deploy --all',
    )
)
def deploy(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="Spec file from which a run is created; or use --run.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="An existing run to deploy, instead of SPEC.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the deployment. Default: the name in the spec, or the run's id.")
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            help="When windows begin, as a cron expression: minute hour day month weekday, such as '0 22 * * *'."
        ),
    ] = None,
    interval: Annotated[str | None, typer.Option(help="Time between the starts of windows, such as 6h or 1d.")] = None,
    manual: Annotated[bool, typer.Option("--manual", help="No schedule; windows are started manually.")] = False,
    longest: Annotated[
        str | None,
        typer.Option(
            "--for", help="Maximum length of a window, such as 8h. A window always ends when the next one begins."
        ),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone for --cron and --interval, such as Europe/Berlin. Default: UTC.")
    ] = None,
    new_runs: Annotated[
        bool,
        typer.Option(
            "--new-run-each-time",
            help="Each window starts a new run from the run's spec, instead of continuing the run.",
        ),
    ] = False,
    overrides: OverridesOption = None,
    file: Annotated[
        Path | None, typer.Option(help="Write the deployment to this prefect.yaml, to be applied by `prefect deploy`.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drive a run in scheduled windows: each continues where the last one ended, and ends with a checkpoint.

    A window does nothing if another driver already drives the run, or if a worker picks the window up too late. A window
    that you start takes parameters, with `yatt window` or in Prefect's form: overrides, iterations, window, run (continue or
    new).
    """
    place = Home.locate(home)
    checked = _checked_spec(place, spec, run, overrides)
    given = None if run is None else _found(place, run)
    connect_to_server(place, wanted=file is None)
    from flows.schedule import deployments
    from ops.scheduled import window

    called = _named(name or (checked.name if checked else given.run if given else ""))
    schedule = _checked_schedule(When(cron=cron, interval=interval, manual=manual, longest=longest, timezone=timezone))
    project = None if file is None else deployments.read_project(file)
    driven = given or _run(place, called, checked, _parameters_before(called, window, project))
    deployment = deployments.Deployment(
        name=called,
        run=driven.run,
        owner=driven.owner,
        home=place.folder,
        schedule=schedule,
        window=longest,
        new_runs=new_runs,
    )
    try:
        if file is None or project is None:
            deployments.apply(deployment, window)
        else:
            deployments.write_project(file, project, deployments.entry(deployment, window))
    except InfrastructureError:
        again = "" if given else f" with --run {driven.run} instead of the spec"
        message(f"run {driven.run} exists but is not deployed; try again{again}")
        raise
    _tell(deployment, window.name, file, output)


def _checked_spec(home: Home, spec: Path | None, run: str | None, overrides: list[str] | None) -> RunSpec | None:
    """Returns the spec to create a run from; None if an existing run was named."""
    from ops.preflight.run import check_before_start
    from yatt_core.spec import load_spec

    if (spec is None) == (run is None):
        raise ConfigurationError("SPEC or --run: give exactly one of them, such as configs/quickstart.yaml")
    if spec is None:
        if overrides:
            raise ConfigurationError("--set: needs SPEC; to change an existing run's spec use `yatt resume RUN --set`")
        return None
    checked = fetched(home.folder, load_spec(spec, overrides or (), with_files=True), weights=False)
    for warning in check_before_start(home.folder, checked).warnings:
        message(f"warning: {warning}")
    return checked


def _named(name: str) -> str:
    """Returns the name. Raises `ConfigurationError` if it is not valid for a deployment."""
    if not NAME.fullmatch(name):
        fitting = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "nightly"
        raise ConfigurationError(
            f"--name: {name!r} is not a valid deployment name (letters, digits, '.', '_', '-'); try {fitting!r}"
        )
    return name


def _checked_schedule(when: When) -> Schedule | None:
    """Returns the schedule; None if windows are started manually.

    Raises `ConfigurationError`, also if the maximum length of a window is wrong.
    """
    _longest(when.longest)
    return _schedule(when)


def _longest(window: str | None) -> timedelta | None:
    return None if window is None else parse_duration(window, "--for")


def _schedule(when: When) -> Schedule | None:
    from flows.schedule.schedule_times import cron_schedule, interval_schedule

    if [when.cron is not None, when.interval is not None, when.manual].count(True) != 1:
        raise ConfigurationError(
            "--cron, --interval or --manual: give exactly one of them to say when windows begin, such as --cron '0 22 * * *'"
        )
    if when.manual:
        if when.timezone is not None:
            raise ConfigurationError("--timezone: only valid with --cron or --interval; leave it out")
        return None
    timezone = when.timezone or "UTC"
    if when.cron is not None:
        return cron_schedule(when.cron, timezone, "--cron", "--timezone")
    interval = parse_duration(when.interval or "", "--interval")
    if interval < SHORTEST_INTERVAL:
        raise ConfigurationError(
            f"--interval: {when.interval} is shorter than the time a driver takes to start; expected at least "
            f"{SHORTEST_INTERVAL.seconds}s"
        )
    return interval_schedule(interval, datetime.now(UTC), timezone, "--timezone")


def _found(home: Home, run: str) -> Driven:
    """Finds an existing run. Raises `RunNotFound`."""
    from flows.run.owner import owner_of

    with opened_ledger(home) as ledger:
        known = find_run(ledger, run)
        return Driven(known, owner_of(ledger, known))


def _run(home: Home, name: str, spec: RunSpec | None, before: Mapping[str, Any] | None) -> Driven:
    """Returns the run for a spec's deployment: the run that the deployment of this name already drives, or a new run.

    before: parameters of the existing deployment of this name; None if there is none.

    Raises `ConfigurationError` if that deployment drives a run with another spec, since it is unclear which is meant.
    """
    from flows.branching.spec_changes import changed_keys
    from flows.run.creation import create_run, current_spec
    from flows.run.owner import owner_of

    assert spec is not None, "without a spec, a run is given"
    if before is None:
        return _found(home, create_run(home, fetched(home.folder, spec), by=acting_name()))
    if before.get("home") != str(home.folder):
        raise ConfigurationError(
            f"--name: deployment {name} belongs to home {before.get('home')}; choose another name, or use that --home"
        )
    with opened_ledger(home) as ledger:
        known = find_run(ledger, str(before.get("deployed_run")))
        named = before.get("owner")
        if named is None:
            raise ConfigurationError(
                f"--name: deployment {name} does not record the owner of run {known}, so it is unclear whose run is meant; "
                f"deploy again with --run {known} instead of the spec to drive this ledger's run, or choose another name"
            )
        owner = owner_of(ledger, known)
        if named != owner:
            raise ConfigurationError(
                f"--name: deployment {name} belongs to run {known} of another ledger, not to the run {known} of "
                f"this one; choose another name, set YATT_LEDGER to the other ledger, or, to drive the run of this one, "
                f"pass --run {known} instead of the spec"
            )
        keys = changed_keys(current_spec(ledger, known), spec)
    if keys:
        raise ConfigurationError(
            f"--name: deployment {name} drives run {known}, whose spec differs in {', '.join(keys[:5])}; change the run with "
            f"`yatt resume {known} --set KEY=VALUE`, keep it unchanged with --run {known}, or choose another --name for a new run"
        )
    return Driven(known, owner)


def _parameters_before(name: str, flow: WindowFlow, project: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the parameters of the deployment of this name, on the server or in the file; None if there is none."""
    from flows.schedule.deployments import deployed, entry_named

    if project is None:
        found = deployed(name, flow)
        return None if found is None else found.parameters
    entry = entry_named(project, name)
    return None if entry is None else entry.get("parameters", {})


def _tell(deployment: Deployment, flow_name: str, file: Path | None, output: Output) -> None:
    windows = _first_windows(deployment)
    path = f"{flow_name}/{deployment.name}"
    if output is Output.JSON:
        listed = [{"begins": _iso(each.begins), "ends": _iso(each.ends)} for each in windows]
        written = None if file is None else str(file)
        write_json({"deployment": path, "run": deployment.run, "file": written, "windows": listed})
        return
    write(
        f"{path} drives {'new runs with the spec of' if deployment.new_runs else 'run'} {deployment.run}"
        + ("" if file is None else f"; written to {file}, apply it with `prefect deploy`")
    )
    if windows:
        write("first windows: " + "; ".join(map(str, windows)))
    if file is None:
        write(f"to start a window now, with other parameters if you like: yatt window {deployment.name}")


def _first_windows(deployment: Deployment) -> list[Window]:
    from flows.schedule.schedule_times import upcoming

    if deployment.schedule is None:
        return []
    starts = upcoming(deployment.schedule, datetime.now(UTC), SHOWN_WINDOWS + 1)
    return [Window.between(begins, _longest(deployment.window), starts) for begins in starts[:SHOWN_WINDOWS]]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
