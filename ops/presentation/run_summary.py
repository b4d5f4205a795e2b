"""The closing summary of `yatt train` and `yatt resume`: improvements, file locations and next commands."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING

from flows.reports.learning_curve import can_draw, write_learning_plot
from flows.reports.measures import told_of
from ops.presentation.advice import to_continue
from ops.presentation.measure_words import change_line
from ops.presentation.output import write
from ops.presentation.words import duration, place
from yatt_core.errors import InfrastructureError

if TYPE_CHECKING:
    from pathlib import Path

    from db.ledger import Ledger
    from db.write.runs import RunRow
    from flows.run.home import Home
    from flows.run.results import RunResults
    from yatt_core.spec import RunSpec

NONE: Mapping[str, str] = MappingProxyType({})


def print_summary(
    ledger: Ledger, home: Home, results: RunResults, spec: RunSpec, links: Mapping[str, str] = NONE
) -> None:
    """Writes the summary, and draws the learning curve.

    links: addresses of the run's pages, by the name of the service.
    """
    run = ledger.runs.find(results.run)
    write(f"\n{run.id} is {run.state}, {place(run.iteration, run.target_iterations)} ({run.state_reason})")
    sft = spec.sft is not None
    for told in told_of(ledger, run.id):
        write(f"  {change_line(told, sft)}")
    write(f"  {duration(results.seconds)}" + (f", of which SFT {duration(results.sft_seconds or 0.0)}" if sft else ""))
    write("files")
    folder = home.run_folder(run.id)
    write(f"  run       {folder}")
    write(f"  logs      {folder / 'logs'}")
    write(f"  picture   {_picture(ledger, run.id, folder)}")
    write("pages")
    write(f"  dashboard {links.get('dashboard', '`yatt dashboard` serves it, and so does `yatt up`')}")
    if "mlflow" in spec.tracking.names:
        write(f"  MLflow    {links.get('MLflow') or mlflow_command(home)}")
    if "Prefect" in links:
        write(f"  Prefect   {links['Prefect']}")
    write("next commands")
    for command in next_commands(run, spec.samples_responses):
        write(f"  {command}")


def _picture(ledger: Ledger, run: str, folder: Path) -> str:
    """Draws the learning curve and returns its file, or why there is none: a full disk must not hide why a run paused."""
    try:
        if not can_draw():
            return "none: matplotlib is not installed"
        return str(write_learning_plot(ledger, run, folder) or "none: nothing is measured yet")
    except InfrastructureError as error:
        return f"none: {error}"


def mlflow_command(home: Home) -> str:
    """Returns how to view the run in MLflow: the server's address, or the command that serves a local store."""
    from yatt_core.logs import redact

    address = redact(home.tracking_uri)
    if address.startswith(("http://", "https://")):
        return address
    command = f"mlflow ui --backend-store-uri {address} --default-artifact-root {home.artifacts}"
    # YATT depends only on mlflow-skinny, which stores runs but has no user interface.
    return command if find_spec("flask") else f"pip install mlflow=={version('mlflow-skinny')}, then {command}"


def next_commands(run: RunRow, samples: bool) -> list[str]:
    """Returns commands that are useful in the run's state.

    samples: whether the run samples responses, and so has rollouts to look at.
    """
    commands = [f"yatt show {run.id}"]
    if run.iteration > 0:
        if samples:
            commands.append(f"yatt rollouts {run.id} --iteration {run.iteration} --sort reward")
        commands.append(f"yatt evaluate {run.id}")
    resume = to_continue(
        run=run.id, state=run.state, reason=run.state_reason, iteration=run.iteration, target=run.target_iterations
    )
    return commands if resume is None else [*commands, resume]
