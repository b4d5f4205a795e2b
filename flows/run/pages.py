"""The addresses of a run's pages in the dashboard, MLflow and Prefect.

Consumes the addresses of servers; produces links without credentials. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from yatt_core.logs import redact

DASHBOARD = "Dashboard"
MLFLOW = "MLflow"
PREFECT = "Prefect"
"""The names under which the pages are shown."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The servers whose pages show runs; an empty address if there is none.

    dashboard, mlflow, prefect: addresses without credentials and without a slash at the end.
    """

    dashboard: str = ""
    mlflow: str = ""
    prefect: str = ""

    def in_dashboard(self, run: str) -> str:
        """Returns the run's page in the dashboard; empty if there is none."""
        return f"{self.dashboard}/runs/{quote(run)}" if self.dashboard else ""

    def in_mlflow(self, place: str | None) -> str:
        """Returns the page of an MLflow run in the mode that shows training; empty if there is none.

        MLflow chooses its mode by the address, then by what the browser has stored, and never by the experiment. A page that
        is addressed without its experiment is forwarded to one without a mode.

        place: `EXPERIMENT/RUN`, by MLflow's ids.
        """
        if not self.mlflow or not place:
            return ""
        experiment, _, run = place.rpartition("/")
        folder = f"experiments/{quote(experiment)}/" if experiment else ""
        return f"{self.mlflow}/#/{folder}runs/{quote(run)}?workflowType=machine_learning"

    def in_prefect(self, flow_run: str) -> str:
        """Returns the page of a flow run; empty if there is none."""
        return f"{self.prefect}/runs/flow-run/{quote(flow_run)}" if self.prefect and flow_run else ""

    def links(self, run: str, mlflow_place: str | None, flow_run: str) -> dict[str, str]:
        """Returns the run's pages that there are, by the name of the server."""
        found = {
            DASHBOARD: self.in_dashboard(run),
            MLFLOW: self.in_mlflow(mlflow_place),
            PREFECT: self.in_prefect(flow_run),
        }
        return {name: address for name, address in found.items() if address}


NO_PAGES = Pages()


def page_address(address: str | None) -> str:
    """Returns the address of a server's pages: scheme, host, port and path without credentials, query and `/api`.

    Empty for an address that a browser cannot open, such as a database's.
    """
    try:
        parts = urlsplit(address or "")
        host = parts.hostname
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not host:
        return ""
    named = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/").removesuffix("/api")
    return redact(f"{parts.scheme}://{named}{f':{port}' if port else ''}{path}")
