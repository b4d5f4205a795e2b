"""`yatt deploy`: a run that is driven in windows of a schedule, as a Prefect deployment.

Consumes a spec (of which it makes a run) or a run, and a schedule; produces the deployment on Prefect's server, or its entry in
a prefect.yaml. All that can be wrong is said before a run is made; deployed again, a name keeps its run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, OverridesOption, examples
from ops.presentation.output import message, write, write_json

if TYPE_CHECKING:
    from flows.driver.windows import Window
    from flows.run.home import Home
    from flows.schedule.deployments import Deployment
    from flows.schedule.schedule_times import Schedule
    from flows.schedule.scheduled import WindowFlow
    from yatt_core.spec import RunSpec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
SHOWN_WINDOWS = 3
SHORTEST_INTERVAL = timedelta(seconds=10)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    lines = (
        'yatt deploy configs/quickstart.yaml --cron "0 22 * * *" --timezone Europe/Berlin --for 8h',
        "yatt deploy configs/quickstart.yaml --name hourly --interval 1h",
        "yatt deploy --run quickstart-3 --name by-hand --manual && prefect deployment run yatt/by-hand",
        'yatt deploy configs/quickstart.yaml --cron "0 22 * * *" --file prefect.yaml && prefect deploy --all',
    )
    app.command(epilog=examples(*lines))(deploy)


@dataclass(frozen=True, slots=True)
class When:
    """The schedule as it was asked for."""

    cron: str | None
    interval: str | None
    manual: bool
    longest: str | None
    timezone: str | None


@dataclass(frozen=True, slots=True)
class Driven:
    """A run, and what tells it from one of the same name in another ledger (`flows.run.owner`)."""

    run: str
    owner: str


def deploy(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="The spec that a run is made of; or give --run.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="A run that is there already, in place of SPEC.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployment. Default: that of the spec.")] = None,
    cron: Annotated[
        str | None, typer.Option(help="Windows begin at: minute hour day month weekday, such as '0 22 * * *'.")
    ] = None,
    interval: Annotated[str | None, typer.Option(help="Windows begin so far apart, such as 6h or 1d.")] = None,
    manual: Annotated[bool, typer.Option("--manual", help="Windows begin when somebody starts them.")] = False,
    longest: Annotated[
        str | None,
        typer.Option("--for", help="How long a window lasts, such as 8h. It ends when the next begins at the latest."),
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of --cron and --interval, such as Europe/Berlin. Default: UTC.")
    ] = None,
    overrides: OverridesOption = None,
    file: Annotated[
        Path | None, typer.Option(help="Write the deployment into this prefect.yaml; `prefect deploy` applies it.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Drive a run in windows: each takes it up where the last one left it, and ends with a checkpoint.

    A window that finds the run driven by somebody else leaves it to them; one that a worker takes up too late does nothing.
    """
    from flows.run.home import Home
    from yatt_core.errors import InfrastructureError

    place = Home.locate(home)
    checked = _checked_spec(place, spec, run, overrides)
    given = None if run is None else _found(place, run)
    _connect(place, wanted=file is None)
    from flows.schedule import deployments
    from ops.scheduled import window

    called = _named(name or (checked.name if checked else given.run if given else ""))
    schedule, lasting = _windows(When(cron, interval, manual, longest, timezone))
    project = None if file is None else deployments.read_project(file)
    driven = given or _run(place, called, checked, _parameters_before(called, window, project))
    deployment = deployments.Deployment(called, driven.run, driven.owner, place.folder, schedule, lasting)
    try:
        if file is None or project is None:
            deployments.apply(deployment, window)
        else:
            deployments.write_project(file, project, deployments.entry(deployment, window))
    except InfrastructureError:
        again = "" if given else f" with --run {driven.run} in place of the spec"
        message(f"run {driven.run} is there, but not deployed; try again{again}")
        raise
    _tell(deployment, window.name, file, output)


def _checked_spec(home: Home, spec: Path | None, run: str | None, overrides: list[str] | None) -> RunSpec | None:
    """The spec that a run is to be made of; None where a run is there."""
    from ops.preflight.run import check_before_start
    from yatt_core.errors import ConfigurationError
    from yatt_core.spec import load_spec

    if (spec is None) == (run is None):
        raise ConfigurationError(
            "SPEC or --run: just one of them says what is deployed, such as configs/quickstart.yaml"
        )
    if spec is None:
        if overrides:
            raise ConfigurationError("--set: goes with SPEC; a run's spec is changed by `yatt resume RUN --set`")
        return None
    checked = load_spec(spec, overrides or ())
    check_before_start(home.folder, checked)
    return checked


def _connect(home: Home, wanted: bool) -> None:
    """Points Prefect's client at the server, before prefect is imported.

    wanted: False where only a file is written. Raises `ConfigurationError` where a server is wanted and none is known.
    """
    from flows.prefect_io.prefect_server import use_server
    from ops.group.address import NOWHERE, prefect_address, prefect_password
    from yatt_core.errors import ConfigurationError

    address = prefect_address(home)
    if address is None and wanted:
        raise ConfigurationError(
            "no Prefect server is known: start one with `yatt up`, name one in $PREFECT_API_URL, or write the deployment into a "
            "file with --file prefect.yaml"
        )
    use_server(home.group, address or NOWHERE, None if address is None else prefect_password(home, address))


def _named(name: str) -> str:
    """The name, where it is one for a deployment. Raises `ConfigurationError`."""
    from yatt_core.errors import ConfigurationError

    if not NAME.fullmatch(name):
        fitting = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "nightly"
        raise ConfigurationError(
            f"--name: {name!r} is no name for a deployment (letters, digits, '.', '_', '-'); right would be {fitting!r}"
        )
    return name


def _windows(when: When) -> tuple[Schedule | None, timedelta | None]:
    """When windows begin, none where somebody starts them, and how long one lasts. Raises `ConfigurationError`."""
    from flows.driver.windows import parse_duration

    longest = None if when.longest is None else parse_duration(when.longest, "--for")
    return _schedule(when), longest


def _schedule(when: When) -> Schedule | None:
    from flows.driver.windows import parse_duration
    from flows.schedule.schedule_times import cron_schedule, interval_schedule
    from yatt_core.errors import ConfigurationError

    if [when.cron is not None, when.interval is not None, when.manual].count(True) != 1:
        raise ConfigurationError(
            "--cron, --interval or --manual: just one of them says when windows begin, such as --cron '0 22 * * *'"
        )
    if when.manual:
        if when.timezone is not None:
            raise ConfigurationError("--timezone: goes with --cron or --interval; leave it out")
        return None
    timezone = when.timezone or "UTC"
    if when.cron is not None:
        return cron_schedule(when.cron, timezone, "--cron", "--timezone")
    interval = parse_duration(when.interval or "", "--interval")
    if interval < SHORTEST_INTERVAL:
        raise ConfigurationError(
            f"--interval: {when.interval} is shorter than a driver takes to start; right would be at least "
            f"{SHORTEST_INTERVAL.seconds}s"
        )
    return interval_schedule(interval, datetime.now(UTC), timezone, "--timezone")


def _found(home: Home, run: str) -> Driven:
    """The run that a person means. Raises `RunNotFound`."""
    from flows.run.owner import owner_of

    with opened_ledger(home) as ledger:
        known = find_run(ledger, run)
        return Driven(known, owner_of(ledger, known))


def _run(home: Home, name: str, spec: RunSpec | None, before: Mapping[str, Any] | None) -> Driven:
    """The run of a spec's deployment: that which the deployment of this name has, or a new one.

    before: parameters of the deployment of this name; None where there is none. Raises `ConfigurationError` for one that has
    a run of another spec, since which of the two is meant cannot be known.
    """
    from flows.branching.restore_points import changed_keys
    from flows.run.creation import create_run, current_spec
    from flows.run.owner import owner_of
    from yatt_core.errors import ConfigurationError

    assert spec is not None, "a run is given where no spec is"
    if before is None:
        return _found(home, create_run(home, spec))
    if before.get("home") != str(home.folder):
        raise ConfigurationError(
            f"--name: deployment {name} is one of the home {before.get('home')}; choose another name, or that --home"
        )
    with opened_ledger(home) as ledger:
        known = find_run(ledger, str(before["run"]))
        named = before.get("owner")
        if named is None:
            raise ConfigurationError(
                f"--name: deployment {name} names no owner of run {known}, so whose run is meant cannot be known; deploy again "
                f"with --run {known} in place of the spec to have it drive the run of this ledger, or choose another name"
            )
        owner = owner_of(ledger, known)
        if named != owner:
            raise ConfigurationError(
                f"--name: deployment {name} was made for run {known} of another ledger; choose another name, the YATT_LEDGER "
                f"that it was made with, or --run {known} in place of the spec to have it drive the run of this one"
            )
        keys = changed_keys(current_spec(ledger, known), spec)
    if keys:
        raise ConfigurationError(
            f"--name: deployment {name} drives run {known}, whose spec differs in {', '.join(keys[:5])}; change the run with "
            f"`yatt resume {known} --set KEY=VALUE`, keep it as it is with --run {known}, or choose another --name for a new run"
        )
    return Driven(known, owner)


def _parameters_before(name: str, flow: WindowFlow, project: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Parameters of the deployment of this name, on the server or in the file; None where there is none."""
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
        f"{path} drives run {deployment.run}"
        + ("" if file is None else f"; {file} has it, `prefect deploy` applies it")
    )
    if windows:
        write("the first windows: " + "; ".join(map(str, windows)))
    write(f"one at once: prefect deployment run {path}")


def _first_windows(deployment: Deployment) -> list[Window]:
    from flows.driver.windows import Window
    from flows.schedule.schedule_times import upcoming

    if deployment.schedule is None:
        return []
    starts = upcoming(deployment.schedule, datetime.now(UTC), SHOWN_WINDOWS + 1)
    return [Window.between(begins, deployment.longest, starts) for begins in starts[:SHOWN_WINDOWS]]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
