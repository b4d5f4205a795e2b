"""The settings of maintenance: `maintenance.yaml` in the home folder; without the file, the defaults.

cron: "0 3 * * *"
timezone: Europe/Berlin
audit: true
backup: {to: /backups/yatt, keep: 14}
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from flows.driver.windows import check_cron, check_timezone
from flows.run.home import Home
from yatt_core.section import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model

NAME = "maintenance.yaml"


class BackupTarget(SpecModel):
    """Where backups are made."""

    to: Path
    """Absolute path of the folder, outside the home folder."""
    keep: int = Field(default=14, ge=1)
    """Number of the newest backups to keep; older ones are deleted."""
    tokens: bool = False
    """Whether backups have the digests of tokens, which are then valid in a restored home."""

    @field_validator("to")
    @classmethod
    def _absolute(cls, to: Path) -> Path:
        if not to.is_absolute():
            raise ValueError(f"expected an absolute path, since a worker runs elsewhere (given: {to})")
        return to


class MaintenanceSettings(SpecModel):
    """What maintenance does, and when."""

    cron: str = "0 3 * * *"
    """When it begins: minute, hour, day, month, weekday."""
    timezone: str = "UTC"
    """Time zone of `cron`, a name from the IANA database."""
    audit: bool = True
    """Whether every run is audited, which reads all files of all runs."""
    backup: BackupTarget | None = None
    """Where to back up; `null`: nowhere."""


def read_settings(home: Home) -> MaintenanceSettings:
    """Returns the settings of a home. Raises `ConfigurationError` with a line per mistake."""
    path = home.folder / NAME
    if not path.exists():
        return MaintenanceSettings()
    settings = parse_model(MaintenanceSettings, read_document(path), str(path))
    check_cron(settings.cron, f"{path}: cron")
    check_timezone(settings.timezone, f"{path}: timezone")
    return settings
