"""Brings a run's files to a node with a disk of its own, once, before actors there need them.

Consumes the run's durable tier; produces the same files as on the node that made them, verified against their digests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from yatt_core.code_files import fetch_code
from yatt_core.digests import file_sha256
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore, open_store


def bring_code(spec_json: str, run_folder: str) -> None:
    """Brings the files with code that the spec names; each is compared with its digest when it is read."""
    spec = RunSpec.model_validate_json(spec_json)
    folder = Path(run_folder)
    fetch_code(spec, folder, open_store(spec, folder))


def bring_inputs(spec_json: str, run_folder: str, manifest_sha256: str) -> None:
    """Brings the inputs with this manifest, unless the node has them. Raises as `receive_inputs` does."""
    folder = Path(run_folder)
    receive_inputs(folder, open_store(RunSpec.model_validate_json(spec_json), folder), manifest_sha256)


def receive_inputs(run_folder: Path, store: RunStore, manifest_sha256: str) -> None:
    """Fetches the inputs unless the folder has those with this manifest.

    Raises `InfrastructureError` if the durable tier lacks them, and `DataError` if a file does not match the manifest.
    """
    if _has(run_folder, manifest_sha256):
        return
    if not store.fetch(INPUTS, manifest_sha256, _verify) or not _has(run_folder, manifest_sha256):
        raise InfrastructureError(
            f"{run_folder / INPUTS}: this node lacks the run's inputs with the manifest {manifest_sha256}, and so does "
            "the object store"
        )


def _has(run_folder: Path, manifest_sha256: str) -> bool:
    manifest = run_folder / INPUTS / MANIFEST
    return manifest.is_file() and file_sha256(manifest) == manifest_sha256


def _verify(folder: Path) -> None:
    """Raises `DataError` unless all files but the images, which are verified when they are read, match the manifest."""
    data = (folder / MANIFEST).read_bytes()
    for name, sha256 in json.loads(data)["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise DataError(
                f"{folder / name}: arrived damaged or not at all; the manifest {hashlib.sha256(data).hexdigest()} "
                f"says sha256 {sha256}"
            )
