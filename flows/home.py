"""Where things lie: the home folder with the ledger and MLflow's store, and a folder for each run.

runs/                     the home: $YATT_HOME, or `runs` in the working folder
  ledger.db               the ledger, unless $YATT_LEDGER names another database
  mlflow.db, artifacts/   MLflow's store, unless $MLFLOW_TRACKING_URI names a server
  <run>/                  inputs, experience, snapshots, logs, supervisor, prefect
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """The home folder; absolute."""

    folder: Path

    @classmethod
    def locate(cls, folder: Path | None = None) -> Home:
        """The given folder, else $YATT_HOME, else `runs` in the working folder; not created here."""
        return cls(Path(folder or os.environ.get("YATT_HOME") or "runs").resolve())

    @property
    def ledger(self) -> str:
        """Database address of the ledger."""
        return os.environ.get("YATT_LEDGER") or f"sqlite:///{self.folder / 'ledger.db'}"

    @property
    def tracking_uri(self) -> str:
        """Address of MLflow's store or server."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts, where no server keeps them."""
        return self.folder / "artifacts"

    def run_folder(self, run: str) -> Path:
        """Folder of a run."""
        return self.folder / run
