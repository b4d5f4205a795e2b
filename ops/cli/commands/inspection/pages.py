"""`yatt open`: opens a run's page in the dashboard, MLflow or Prefect in the browser.

Consumes a run's name and the addresses of the service group or the environment; starts no server.
"""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlsplit

import typer

from flows.run.home import Home
from flows.run.pages import DASHBOARD, MLFLOW, PREFECT, Pages
from ops.cli.commands.services.dashboard import HOST
from ops.cli.commands.services.group import DASHBOARD_PORT
from ops.presentation.output import message, write
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, RunArgument, examples
from yatt_core.errors import ConfigurationError, InfrastructureError

app = typer.Typer()

CONNECT_SECONDS = 2.0
REMEDY = {
    DASHBOARD: "`yatt dashboard` serves it, and so does `yatt up`",
    MLFLOW: "`yatt up` serves it; otherwise name a server in MLFLOW_TRACKING_URI",
    PREFECT: "`yatt up` serves it; otherwise name a server in PREFECT_API_URL",
}


@app.command("open", epilog=examples("yatt open", "yatt open quickstart-3 --mlflow", "yatt open latest --print"))
def open_page(
    run: RunArgument = "latest",
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Open MLflow's page of the run.")] = False,
    prefect: Annotated[bool, typer.Option("--prefect", help="Open Prefect's page of its newest session.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address instead of opening it.")] = False,
    home: HomeOption = None,
) -> None:
    """Open a run's page in the browser: in the dashboard, or in MLflow or Prefect.

    Without a display the address is printed. No server is started: if none answers, the command says what starts one.
    """
    from ops.group.pages import live_pages
    from ops.queries.links import run_links

    if mlflow and prefect:
        raise ConfigurationError("--mlflow, --prefect: only one of them can be given")
    name = MLFLOW if mlflow else PREFECT if prefect else DASHBOARD
    place = Home.locate(home)
    pages = with_default(live_pages(place))
    with opened_ledger(place) as ledger:
        found = find_run(ledger, run)
        links = run_links(ledger, found, pages)
    if name not in links:
        server = {MLFLOW: pages.mlflow, PREFECT: pages.prefect}.get(name, pages.dashboard)
        why = f"{name} has no page of {found} yet" if server else f"no {name} is up; {REMEDY[name]}"
        raise InfrastructureError(why)
    if not answers(links[name]):
        raise InfrastructureError(f"nothing answers at {links[name]}; {REMEDY[name]}")
    if only_print or not has_display() or not webbrowser.open(links[name]):
        write(links[name])
    else:
        message(f"opened {links[name]}")


def with_default(pages: Pages) -> Pages:
    """Returns the pages, with the address of a `yatt dashboard` at its usual port if no other dashboard is known."""
    return pages if pages.dashboard else replace(pages, dashboard=f"http://{HOST}:{DASHBOARD_PORT}")


def answers(address: str) -> bool:
    """Returns True if something listens at an address."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((str(parts.hostname), port), CONNECT_SECONDS):
            return True
    except OSError:
        return False


def has_display() -> bool:
    """Returns True if a browser can show itself: on Linux, if there is a display or the user names a browser."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
