"""The layout of the home folder: the ledger, MLflow's store, and a folder for each run.

runs/                     the home: $YATT_HOME, or `runs` in the working folder
  ledger.db               the ledger, unless $YATT_LEDGER names another database
  mlflow.db, artifacts/   MLflow's store, unless $MLFLOW_BACKEND_STORE_URI or $MLFLOW_TRACKING_URI names another
  specs/                  specs that an operator may start over HTTP; put there by hand
  group/                  the service group of `yatt up`: its state, logs, and Prefect's database
  checks/                 which reference answers and tests `yatt check` has tried; may be deleted at any time
  endpoints/              limits and circuits of judges' endpoints, for all runs of the home; may be deleted at any time
  starts/                 Prefect's empty database, unless the environment has one, and inputs that runs have in common; may be
                          deleted at any time
  clusters/               Ray heads and Prefect servers of commands that drive several runs; each is deleted when its command ends
  restoring.json          while `yatt restore` fills the home
  <run>/                  inputs, experience, checkpoints, logs, supervisor, prefect
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from db.core.errors import LedgerAddressError
from yatt_core.errors import ConfigurationError

LEDGER_VARIABLE = "YATT_LEDGER"
RESTORING = "restoring.json"
"""The file that marks a home which `yatt restore` has not completed."""
STARTS = "starts"
"""The folder of what starts of runs have in common."""
_POSTGRESQL = re.compile(r"^postgres(ql)?(\+\w+)?://")


def with_driver(address: str, driver: str) -> str:
    """Returns a PostgreSQL address with the given driver; leaves the address of any other database unchanged."""
    return _POSTGRESQL.sub(f"postgresql+{driver}://", address)


@dataclass(frozen=True, slots=True)
class Home:
    """The home folder.

    folder: an absolute path.
    """

    folder: Path

    @classmethod
    def locate(cls, folder: Path | None = None) -> Home:
        """Returns the home at `folder`, else at $YATT_HOME, else at `runs` in the working folder; creates nothing."""
        return cls(Path(folder or os.environ.get("YATT_HOME") or "runs").resolve())

    @property
    def ledger(self) -> str:
        """The database address of the ledger.

        Raises `LedgerAddressError` if $YATT_LEDGER is not one, `ConfigurationError` if the home is being restored.
        """
        if (self.folder / RESTORING).exists():
            raise ConfigurationError(
                f"{self.folder}: is being restored from a backup; repeat the `yatt restore` that was interrupted"
            )
        return self.ledger_address

    @property
    def ledger_address(self) -> str:
        """The database address of the ledger, also while the home is being restored. Raises as `ledger` does."""
        given = os.environ.get(LEDGER_VARIABLE)
        if not given:
            return f"sqlite:///{self.folder / 'ledger.db'}"
        try:
            from db.core.engine import dsn_url  # SQLAlchemy takes longer to import than a check of the home takes

            dsn_url(given)
        except LedgerAddressError as error:
            raise LedgerAddressError(f"{LEDGER_VARIABLE}: {error}") from None
        return given

    @property
    def mlflow_store(self) -> str:
        """The database address of MLflow's store."""
        given = os.environ.get("MLFLOW_BACKEND_STORE_URI")
        return with_driver(given, "psycopg") if given else f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def tracking_uri(self) -> str:
        """The address of MLflow's server, if $MLFLOW_TRACKING_URI names one, else of the store itself."""
        return os.environ.get("MLFLOW_TRACKING_URI") or self.mlflow_store

    @property
    def specs(self) -> Path:
        """The folder of the specs that an operator may start over HTTP."""
        return self.folder / "specs"

    @property
    def artifacts(self) -> Path:
        """The folder of MLflow's artifacts, used without an MLflow server."""
        return self.folder / "artifacts"

    @property
    def group(self) -> Path:
        """The folder of the service group; no run has this name, since a run's name ends in a number."""
        return self.folder / "group"

    @property
    def clusters(self) -> Path:
        """The folder of the clusters that runs share while one command drives them."""
        return self.folder / "clusters"

    @property
    def pipelines(self) -> Path:
        """The folder in which jobs of pipelines put models."""
        return self.folder / "pipelines"

    def run_folder(self, run: str) -> Path:
        """Returns the folder of a run."""
        return self.folder / run
