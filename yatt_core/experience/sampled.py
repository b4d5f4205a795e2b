"""What samplers draw for an iteration of a workload: a folder for each shard, sealed by a manifest that is written last.

Consumes the contents of a shard's files. Produces references by which the trainer's ranks read them, and finds sealed shards
again, whichever sampler, driver and term they are from: a shard is a function of its key and of what it was made by. Once the
iteration's columns are prepared, all of it is in them, and the folders are leftovers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from yatt_core import durable
from yatt_core.errors import DataError
from yatt_core.keys import WorkKey, iteration_folder
from yatt_core.manifests import entry_of_bytes, load_manifest, publish_manifest, read_file, verify_files
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spent_time import DATA, spent

SAMPLED = "sampled"
"""The kind of the manifest, and the beginning of a folder's name."""
MADE_BY = "made_by"
log = logging.getLogger(__name__)


def sampled_folder(key: WorkKey, term: int) -> str:
    """Returns the folder of a shard that was drawn under one term, relative to the run folder."""
    return str(iteration_folder(key.branch, key.iteration) / f"{SAMPLED}-{key.shard:04d}.t{term:04d}")


@spent(DATA, "write sampled shards")
def seal_sampled(run_folder: Path, key: WorkKey, term: int, made_by: str, contents: Mapping[str, bytes]) -> ShardRef:
    """Writes a shard's files and, last, its manifest; returns how it is named.

    made_by: digest of what the shard depends on beside its key.
    contents: of the files, by name.
    """
    folder = sampled_folder(key, term)
    durable.make_folder(run_folder / folder)
    for name, data in contents.items():
        durable.write_file(run_folder / folder / name, data)
    fields = {"key": asdict(key), "term": term, MADE_BY: made_by}
    files = {name: entry_of_bytes(data) for name, data in contents.items()}
    return ShardRef(folder, publish_manifest(run_folder / folder, SAMPLED, fields, files))


@spent(DATA, "check sampled shards")
def adopt_sampled(run_folder: Path, key: WorkKey, made_by: str) -> ShardRef | None:
    """Returns a shard that is sealed already, under any term; None if it must be drawn.

    Every byte is verified. A copy that is damaged, or that something else has made, is logged and skipped.
    """
    parent = iteration_folder(key.branch, key.iteration)
    for path in sorted((run_folder / parent).glob(f"{SAMPLED}-{key.shard:04d}.t*"), reverse=True):
        try:
            manifest = load_manifest(path, SAMPLED)
            verify_files(path, manifest.files)
        except DataError as error:
            log.warning("a sampled shard cannot be used and is drawn again: %s", error)
            continue
        if (manifest.fields.get("key"), manifest.fields.get(MADE_BY)) == (asdict(key), made_by):
            return ShardRef(str(parent / path.name), manifest.sha256)
        log.warning("%s: was drawn for another key or by other settings; it is drawn again", path)
    return None


@spent(DATA, "read sampled shards")
def read_sampled(run_folder: Path, sealed: ShardRef, name: str) -> bytes | None:
    """Returns the verified contents of one of a shard's files; None if it has no file of this name.

    Raises `DataError` if the shard is missing or damaged.
    """
    folder = run_folder / sealed.folder
    manifest = load_manifest(folder, SAMPLED, sealed.manifest_sha256)
    return read_file(folder, name, manifest.files[name]) if name in manifest.files else None


def sweep_sampled(run_folder: Path, branch: int, iteration: int) -> None:
    """Removes the shards of an iteration whose columns are prepared. Only for the driver that holds the lease."""
    for path in sorted((run_folder / iteration_folder(branch, iteration)).glob(f"{SAMPLED}-*")):
        durable.remove_folder(path)
