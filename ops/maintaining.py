"""Maintenance with the services that it needs: by hand, and as the flow that the group's worker starts each day.

The module path of `maintenance` is the entrypoint of the deployment, so its name must not change.
"""

from __future__ import annotations

from pathlib import Path

from flows.maintenance.flow import Ending, maintain_in_flow, maintenance_flow
from flows.maintenance.settings import read_settings
from flows.run.home import Home
from ops.maintenance_steps import steps
from ops.process import keep_caches_inside


@maintenance_flow
def maintenance(home: str) -> Ending:
    """Maintains a home: retention, audits, backup, and the ledger's database.

    Args:
        home: The folder of runs. Set by `yatt up`; leave it unchanged.

    """
    place = Home(Path(home))
    keep_caches_inside(place)
    return maintain_in_flow(place, steps(place, read_settings(place)))
