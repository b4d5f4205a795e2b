"""Checks a checkpoint byte by byte before any of it is loaded, because some of its files may hold pickles.

Consumes the folder and the manifest's sha256 from the ledger. Produces the manifest, or a `DataError` that names
the file.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import DataError
from yatt_core.manifests import MANIFEST, Manifest, load_manifest, verify_files

CHECKPOINT_KIND = "checkpoint"


def verify_checkpoint(run_folder: Path, folder: str, manifest_sha256: str) -> Manifest:
    """Compares the manifest with the ledger's sha256, then every file with the manifest.

    Raises `DataError` if a file is missing, changed, or not listed in the manifest: a reader of the folder might
    load an unlisted file too.
    """
    path = run_folder / folder
    manifest = load_manifest(path, CHECKPOINT_KIND, manifest_sha256)
    verify_files(path, manifest.files)
    unnamed = sorted(set(files_in(path)) - set(manifest.files) - {MANIFEST})
    if unnamed:
        raise DataError(f"{path / unnamed[0]}: is in a checkpoint whose manifest does not list it")
    return manifest


def files_in(folder: Path) -> list[str]:
    """Returns the relative names of all files in a folder and its subfolders, sorted. Raises `DataError` for a link."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise DataError(f"{path}: a checkpoint must not contain links; put the file itself into the folder")
        if not path.is_dir():
            found.append(path.relative_to(folder).as_posix())
    return found
