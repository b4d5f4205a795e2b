"""Publishes a checkpoint under its name, complete or not at all.

Consumes a writer that puts files into an empty folder. Produces a folder whose files are synced and listed in a
manifest with size and sha256, moved to its final name in one rename. The ledger's row is written afterwards; a
checkpoint does not exist until the ledger names it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from yatt_core import durable
from yatt_core.checkpoints.verify import CHECKPOINT_KIND, files_in, verify_checkpoint
from yatt_core.errors import DataError, InfrastructureError, StorageFullError
from yatt_core.manifests import MANIFEST, FileEntry, entry_of_file, load_manifest, publish_manifest
from yatt_core.protocols.receipts import CheckpointReceipt

CheckpointFiles = Callable[[Path], Mapping[str, FileEntry] | None]

SPARE_BYTES = 16 << 20
"""Disk space that must remain free after a checkpoint, for the ledger, logs and experience."""


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """Identifies the tensors that a checkpoint holds; stored in the manifest.

    audit_head: digest at the head of the run's audit chain.
    attempt: number of the attempt that published it, among those of its term and branch.
    """

    run: str
    branch: int
    iteration: int
    term: int
    spec_digest: str
    weights_digest: str
    audit_head: str = ""
    attempt: int = 0

    def names_same(self, other: CheckpointIdentity) -> bool:
        """Returns True if another attempt has written the same tensors."""
        return replace(self, attempt=other.attempt) == other

    def require_latest(self, published: CheckpointIdentity, place: object) -> None:
        """Raises `InfrastructureError` if a later attempt has published other tensors at the place."""
        if published.attempt > self.attempt and not self.names_same(published):
            raise InfrastructureError(
                f"{place}: attempt {self.attempt} is late: attempt {published.attempt} has published the checkpoint"
            )


def identity_in(fields: Mapping[str, Any]) -> CheckpointIdentity | None:
    """Returns the identity in a manifest's fields; None if they are not those of a checkpoint."""
    try:
        return CheckpointIdentity(**fields)
    except TypeError:
        return None


def publish_checkpoint(
    run_folder: Path, folder: str, identity: CheckpointIdentity, write: CheckpointFiles, needed_bytes: int
) -> CheckpointReceipt:
    """Writes and publishes a checkpoint at `folder`, relative to the run folder.

    A complete folder with the same tensors that another attempt published is kept. Raises `StorageFullError` if the disk is
    too small, and `InfrastructureError` if writing fails or a later attempt has published; nothing is left behind in
    these cases.

    write: puts the files into an empty folder; returns the entries of those that it has synced and hashed itself.
    needed_bytes: approximate number of bytes that the writer will write.
    """
    started = time.perf_counter()
    target = run_folder / folder
    durable.make_folder(target.parent)
    if (published := _published(run_folder, folder, identity)) is not None:
        return published
    require_room(target, needed_bytes)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(target, needed_bytes):
            partial.mkdir()
            manifest_sha256, size = _seal(partial, identity, write(partial) or {})
            if target.exists():
                durable.remove_folder(target)
            durable.move_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return receipt_of(
        folder=folder,
        identity=identity,
        manifest_sha256=manifest_sha256,
        size=size,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def writing(target: Path, needed_bytes: int) -> Iterator[None]:
    """Converts the errors of writing a checkpoint into `StorageFullError` or `InfrastructureError`."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, InfrastructureError) as error:
        # safetensors and torch do not raise OSError for a failed write.
        free = shutil.disk_usage(target.parent).free
        kind = StorageFullError if _means_full(error) else InfrastructureError
        raise kind(
            f"{target}: the checkpoint cannot be written: {error}; it needs {needed_bytes} bytes, {free} are free"
        ) from error


def _means_full(error: BaseException) -> bool:
    """Returns True if an error reports a full disk or quota.

    Errors of libraries written in other languages are recognised by their text.
    """
    if isinstance(error, OSError):
        return error.errno in durable.FULL
    return isinstance(error, StorageFullError) or any(os.strerror(number) in str(error) for number in durable.FULL)


def require_room(target: Path, needed_bytes: int) -> None:
    """Raises `StorageFullError` if the disk that will hold `target` does not have enough free space."""
    free = shutil.disk_usage(target.parent).free
    if free < needed_bytes + SPARE_BYTES:
        raise StorageFullError(
            f"{target}: not enough disk space: it needs {needed_bytes} bytes and {SPARE_BYTES} to spare, {free} are free"
        )


def _seal(partial: Path, identity: CheckpointIdentity, known: Mapping[str, FileEntry]) -> tuple[str, int]:
    """Syncs what the writer wrote and adds the manifest; returns the manifest's sha256 and the files' total size.

    known: entries of files that the writer has synced and hashed.
    """
    names = files_in(partial)
    if not names or MANIFEST in names:
        raise DataError(
            f"{partial}: a checkpoint's writer must write at least one file and none named {MANIFEST}; it wrote {names}"
        )
    entries = {}
    for name in names:
        if name not in known:
            durable.sync_file(partial / name)
        entries[name] = known[name] if name in known else entry_of_file(partial / name)
    for path in partial.rglob("*/"):
        durable.sync_folder(path)
    manifest_sha256 = publish_manifest(partial, CHECKPOINT_KIND, asdict(identity), entries)
    return manifest_sha256, sum(entry.size for entry in entries.values())


def _published(run_folder: Path, folder: str, identity: CheckpointIdentity) -> CheckpointReceipt | None:
    """Returns the receipt of the folder's checkpoint if it is complete and holds the same tensors; otherwise None.

    Raises `InfrastructureError` if a later attempt has published other tensors.
    """
    if not (run_folder / folder).exists():
        return None
    try:
        manifest = load_manifest(run_folder / folder, CHECKPOINT_KIND)
        verify_checkpoint(run_folder, folder, manifest.sha256)
    except DataError:
        return None
    if (found := identity_in(manifest.fields)) is None:
        return None
    identity.require_latest(found, run_folder / folder)
    if not identity.names_same(found):
        return None
    durable.sync_folder((run_folder / folder).parent)  # the process that renamed it may have died before syncing
    return receipt_of(
        folder=folder,
        identity=identity,
        manifest_sha256=manifest.sha256,
        size=sum(entry.size for entry in manifest.files.values()),
        seconds=0.0,
    )


def receipt_of(
    folder: str, identity: CheckpointIdentity, manifest_sha256: str, size: int, seconds: float
) -> CheckpointReceipt:
    """Returns the receipt of a published checkpoint.

    size: total bytes of its files.
    seconds: how long the publication took; 0 if unknown.
    """
    return CheckpointReceipt(
        branch=identity.branch,
        iteration=identity.iteration,
        term=identity.term,
        folder=folder,
        manifest_sha256=manifest_sha256,
        bytes=size,
        weights_digest=identity.weights_digest,
        seconds=seconds,
    )
