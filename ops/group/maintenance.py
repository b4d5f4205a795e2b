"""Keeps the deployment of maintenance on the group's Prefect server as `maintenance.yaml` says.

Called in the keeper's rounds over Prefect: applies the deployment at the group's start and whenever the file has changed.
A wrong file, or a server that does not answer, is logged once, and the schedule stays as it was.
"""

from __future__ import annotations

import logging

from flows.maintenance.flow import apply
from flows.maintenance.settings import MaintenanceSettings, read_settings
from flows.run.home import Home
from ops.maintaining import maintenance
from yatt_core.errors import ConfigurationError, InfrastructureError

log = logging.getLogger("yatt.keeper")


class Scheduled:
    """The deployment of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._applied: MaintenanceSettings | None = None
        self._said = ""

    def keep(self) -> None:
        """Applies the settings if they have changed. A failure is logged, and tried again in the next round."""
        try:
            settings = read_settings(self._home)
            if settings != self._applied:
                apply(self._home, settings, maintenance)
                log.info("maintenance is scheduled: %s, %s", settings.cron, settings.timezone)
                self._applied = settings
                self._said = ""
        except (ConfigurationError, InfrastructureError) as error:
            if str(error) != self._said:
                log.warning("maintenance stays scheduled as it was: %s", error)
                self._said = str(error)
