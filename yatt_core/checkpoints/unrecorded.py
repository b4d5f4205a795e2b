"""Finds complete checkpoints that the ledger does not name because the driver died before recording them.

Consumes the folder of checkpoints and the names that the ledger contains. Produces the identity and receipt of each
complete one; the holder of the lease decides whether the run can use it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from yatt_core import durable
from yatt_core.checkpoints.publish import CheckpointIdentity, identity_in, receipt_of
from yatt_core.checkpoints.verify import CHECKPOINT_KIND, verify_checkpoint
from yatt_core.errors import DataError
from yatt_core.keys import CHECKPOINTS, checkpoint_folder
from yatt_core.manifests import load_manifest
from yatt_core.protocols.receipts import CheckpointReceipt

log = logging.getLogger(__name__)


def find_unrecorded(run_folder: Path, known: Collection[str]) -> list[tuple[CheckpointIdentity, CheckpointReceipt]]:
    """Finds complete checkpoints whose folders (relative to the run folder) are not in `known`.

    Every byte is checked; damaged checkpoints are logged and skipped.
    """
    found = []
    paths = sorted((run_folder / CHECKPOINTS).iterdir()) if (run_folder / CHECKPOINTS).exists() else []
    candidates = [str(CHECKPOINTS / path.name) for path in paths if not path.name.startswith(".")]
    for folder in (name for name in candidates if name not in known):
        try:
            found.append(_read(run_folder, folder))
        except DataError as error:
            log.warning("an unrecorded checkpoint cannot be used: %s", error)
    if found:
        # Their publisher may have died before their names were durable.
        durable.sync_folder(run_folder / CHECKPOINTS)
    return found


def _read(run_folder: Path, folder: str) -> tuple[CheckpointIdentity, CheckpointReceipt]:
    manifest = load_manifest(run_folder / folder, CHECKPOINT_KIND)
    verify_checkpoint(run_folder, folder, manifest.sha256)
    identity = identity_in(manifest.fields)
    if identity is None:
        raise DataError(
            f"{run_folder / folder}: its manifest does not identify the checkpoint: {dict(manifest.fields)}"
        )
    if folder != str(checkpoint_folder(identity.branch, identity.iteration, identity.term)):
        raise DataError(f"{run_folder / folder}: its manifest belongs to another checkpoint, {identity}")
    size = sum(entry.size for entry in manifest.files.values())
    return identity, receipt_of(folder, identity, manifest.sha256, size, seconds=0.0)
