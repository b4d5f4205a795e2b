"""The pages of a run in other services, for the dashboard, commands and summaries."""

from __future__ import annotations

from dataclasses import dataclass

from db.ledger import Ledger
from flows.delivery.outbox import mlflow_place
from flows.run.pages import Pages

DASHBOARD, MLFLOW, PREFECT = "dashboard", "MLflow", "Prefect"


@dataclass(frozen=True, slots=True)
class Link:
    """A page. name: of the service that shows it."""

    name: str
    address: str


def run_links(ledger: Ledger, run: str, pages: Pages) -> tuple[Link, ...]:
    """Returns the pages of a run that there are: dashboard, MLflow run of the current branch, newest flow run."""
    place = mlflow_place(ledger, run, ledger.runs.find(run).current_branch)
    flow_runs = [session.flow_run_id for session in ledger.overview.sessions(run, 1)]
    found = (
        Link(DASHBOARD, pages.in_dashboard(run)),
        Link(MLFLOW, pages.in_mlflow(place)),
        Link(PREFECT, pages.in_prefect(flow_runs[0] if flow_runs else "")),
    )
    return tuple(link for link in found if link.address)


def link_addresses(ledger: Ledger, run: str, pages: Pages) -> dict[str, str]:
    """Returns the addresses of a run's pages, by the name of the service."""
    return {link.name: link.address for link in run_links(ledger, run, pages)}
