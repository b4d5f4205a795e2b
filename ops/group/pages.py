"""The servers whose pages show runs: those that the environment names, otherwise the service group's.

Consumes the environment and `HOME/group/`; produces addresses without credentials. Starts and asks nothing.
"""

from __future__ import annotations

import os

from flows.prefect_io.prefect_server import prefect_of_environment
from flows.run.home import Home
from flows.run.pages import Pages, page_address
from ops.group.members import DASHBOARD, MLFLOW, PREFECT
from ops.group.record import read_record
from yatt_core.supervisor.client import current_state

DASHBOARD_VARIABLE = "YATT_DASHBOARD_URL"


def live_pages(home: Home) -> Pages:
    """Returns the addresses of dashboard, MLflow and Prefect; empty for those that are neither named nor up."""
    record = read_record(home.group)
    ports = None if record is None or current_state(home.group) is None else record.ports
    of_group = {name: ports.address(name) if ports else "" for name in (DASHBOARD, MLFLOW, PREFECT)}
    return Pages(
        dashboard=page_address(os.environ.get(DASHBOARD_VARIABLE)) or of_group[DASHBOARD],
        mlflow=page_address(home.tracking_uri) or of_group[MLFLOW],
        prefect=prefect_of_environment() or of_group[PREFECT],
    )
