"""Files on a node's own disk that the run no longer needs: what the driver, on another disk, cannot delete itself.

Consumes names from the driver, which has updated the ledger first. Several actors of a node may be told the same.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from yatt_core import durable
from yatt_core.checkpoints.retention import sweep_checkpoints
from yatt_core.errors import InfrastructureError
from yatt_core.experience.prepared import sweep_prepared
from yatt_core.experience.shard_log import sweep
from yatt_core.keys import iteration_folder
from yatt_core.storage.fetching import fetching

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommittedIteration:
    """An iteration that has been committed.

    keep: folders of its shards and prepared columns that the ledger names.
    """

    branch: int
    iteration: int
    keep: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What to delete, relative to the run folder.

    committed: an iteration of which everything else is to be deleted.
    pruned: branches and iterations whose experience is no longer needed.
    kept_checkpoints: folders of the checkpoints that stay; None if none is to be deleted.
    in_flight: whether a checkpoint is being written.
    """

    committed: CommittedIteration | None = None
    pruned: tuple[tuple[int, int], ...] = ()
    kept_checkpoints: tuple[str, ...] | None = None
    in_flight: bool = False

    def remove(self, run_folder: Path) -> None:
        """Deletes what is there; what cannot be deleted is logged and stays."""
        try:
            with fetching(run_folder):
                if (done := self.committed) is not None:
                    sweep(run_folder, done.branch, done.iteration, done.keep)
                    sweep_prepared(run_folder, done.branch, done.iteration, done.keep)
                for branch, iteration in self.pruned:
                    remove_experience(run_folder / iteration_folder(branch, iteration))
            if self.kept_checkpoints is not None:
                sweep_checkpoints(run_folder, self.kept_checkpoints, self.in_flight)
        except (InfrastructureError, OSError) as error:
            log.warning("unneeded files stay on this node's disk: %s", error)


def remove_experience(folder: Path) -> None:
    """Deletes an iteration's shards and prepared columns; telemetry stays."""
    for part in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.exists() else []:
        if part.name.startswith("."):
            shutil.rmtree(part)
        else:
            durable.remove_folder(part)
