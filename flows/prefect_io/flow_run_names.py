"""Names flow runs after what they drive, once that is known. This module imports prefect (`flows.prefect_io.prefect_client`)."""

from __future__ import annotations

import logging
from uuid import UUID

from prefect.client.orchestration import get_client

from flows.prefect_io.prefect_client import AWAY, server_trouble

log = logging.getLogger("yatt_core.flow")


def rename_flow_run(flow_run: UUID, name: str) -> None:
    """Renames a flow run; it keeps its old name if the server does not answer."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run, name=name)
    except AWAY as error:
        log.warning("could not name the flow run after %s: %s", name, server_trouble(error))
