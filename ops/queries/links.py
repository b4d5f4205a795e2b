"""The pages of a run in other services, for the dashboard, commands and summaries."""

from __future__ import annotations

from db.ledger import Ledger
from flows.delivery.outbox import mlflow_place
from flows.run.pages import Pages


def run_links(ledger: Ledger, run: str, pages: Pages) -> dict[str, str]:
    """Returns a run's pages by the service: dashboard, MLflow run of the current branch, newest flow run."""
    place = mlflow_place(ledger, run, ledger.runs.find(run).current_branch)
    flow_runs = [session.flow_run_id for session in ledger.overview.sessions(run, 1)]
    return pages.links(run, place, flow_runs[0] if flow_runs else "")
