"""The durable tier for the flow and the commands: claims the store for a run, and fetches files missing in its folder.

Consumes the ledger, a run's folder and the store named in the latest revision of its spec. Produces files in the
run's folder; readers check them against the ledger's digests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from db.ledger import Ledger
from db.write.records import CheckpointRow, ShardRow
from flows.run.owner import owner_of
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.shard_log import damaged_shards
from yatt_core.keys import iteration_folder
from yatt_core.manifests import MANIFEST
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.storage.run_store import RunStore, open_store

log = logging.getLogger("yatt_core.flow")


def store_of(ledger: Ledger, run: str, folder: Path) -> RunStore:
    """Opens the durable tier of a run.

    folder: the run's folder.
    """
    spec = parse_spec(dict(ledger.runs.revision(run).spec), f"the spec of run {run}")
    return open_store(spec, folder)


def claim_store(ledger: Ledger, run: str, spec: RunSpec, folder: Path) -> RunStore:
    """Opens the durable tier of a run that is about to write to it, and claims it for this run of this ledger.

    Raises `ConfigurationError` if the address, credentials or owner are wrong, `InfrastructureError` if the store
    does not answer.
    """
    store = open_store(spec, folder)
    store.claim(owner_of(ledger, run))
    return store


def whole_shards(store: RunStore, folder: Path, rows: Sequence[ShardRow]) -> list[ShardRow]:
    """Returns the shards whose files match their digests; fetches missing or damaged ones from the durable tier."""
    damaged = damaged_shards(folder, rows)
    fetched = [row for row in damaged if store.fetch(row.folder, row.manifest_sha256)]
    lost = [row for row in damaged if row not in fetched] + damaged_shards(folder, fetched)
    return [row for row in rows if row not in lost]


def verify_kept(store: RunStore, folder: Path, row: CheckpointRow) -> None:
    """Verifies a checkpoint byte by byte; a missing or damaged local copy is first replaced from the durable tier.

    Raises `DataError` if neither copy is intact.
    """
    try:
        verify_checkpoint(folder, row.folder, row.manifest_sha256)
    except DataError:
        if not store.fetch(row.folder, row.manifest_sha256):
            raise
        verify_checkpoint(folder, row.folder, row.manifest_sha256)


def verify_beside_driver(ledger: Ledger, folder: Path, row: CheckpointRow) -> None:
    """Verifies a checkpoint as `verify_kept` does, while a driver may be pruning checkpoints.

    Raises `ConfigurationError` if the checkpoint was pruned meanwhile.
    """
    failure: DataError | InfrastructureError | None = None
    try:
        verify_kept(store_of(ledger, row.run, folder), folder, row)
    except (DataError, InfrastructureError) as error:
        failure = error
    if not ledger.records.is_kept(row):
        raise ConfigurationError(
            f"run {row.run}: the checkpoint of iteration {row.iteration} was pruned meanwhile"
        ) from failure
    if failure is not None:
        raise failure


def fetch_sealed(store: RunStore, folder: Path, branch: int, iteration: int) -> list[str]:
    """Fetches an iteration's sealed shards that the run's folder lacks, recorded or not; returns their folders.

    They may be lacking because the controllers that made them, or the driver that should have recorded them, died on
    another machine.
    """
    below = str(iteration_folder(branch, iteration))
    return fetch_missing(store, folder, (name for name, whole in store.folders(below).items() if whole))


def fetch_missing(store: RunStore, folder: Path, names: Iterable[str]) -> list[str]:
    """Fetches folders that the run's folder lacks, or of which it has only a part; returns those that were fetched."""
    return [name for name in names if not (folder / name / MANIFEST).exists() and store.fetch(name)]
