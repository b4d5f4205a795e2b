"""Checks a checkpoint byte by byte before anything in it is loaded; some of its files may hold pickles.

Consumes the folder and the manifest's sha256 as the ledger has it. Produces the manifest, or a `DataError` naming the file.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import DataError
from yatt_core.manifests import MANIFEST, Manifest, load_manifest, verify_files

CHECKPOINT_KIND = "checkpoint"


def verify_checkpoint(run_folder: Path, folder: str, manifest_sha256: str) -> Manifest:
    """Compares the manifest with the ledger's sha256, then every file with the manifest.

    Raises `DataError` for what is missing, changed, or not named: a reader of the folder might load that too.
    """
    path = run_folder / folder
    manifest = load_manifest(path, CHECKPOINT_KIND, manifest_sha256)
    verify_files(path, manifest.files)
    unnamed = sorted(set(files_in(path)) - set(manifest.files) - {MANIFEST})
    if unnamed:
        raise DataError(f"{path / unnamed[0]}: stands in a checkpoint whose manifest does not name it")
    return manifest


def files_in(folder: Path) -> list[str]:
    """Names of all files in a folder and below it, relative to it, sorted. Raises `DataError` for a link."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise DataError(f"{path}: a link in a checkpoint; its contents must lie in the folder itself")
        if not path.is_dir():
            found.append(path.relative_to(folder).as_posix())
    return found
