"""Checks a checkpoint byte by byte before any of it is loaded, because some of its files may hold pickles.

Consumes the folder and the manifest's sha256 from the ledger. Produces the manifest, or a `DataError` that names
the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from yatt_core.errors import DataError
from yatt_core.manifests import MANIFEST, FileEntry, Manifest, load_manifest, require_size, verify_files

CHECKPOINT_KIND = "checkpoint"


def verify_checkpoint(
    run_folder: Path, folder: str, manifest_sha256: str, number: int = 0, readers: int = 1
) -> Manifest:
    """Compares the manifest with the ledger's sha256, then every file, or one reader's files, with the manifest.

    number, readers: this reader's number, and how many readers share the work.

    Raises `DataError` if a file is missing, changed, or not listed in the manifest: a reader of the folder might
    load an unlisted file too.
    """
    path = run_folder / folder
    manifest = listed_files(run_folder, folder, manifest_sha256)
    shares = _shares(manifest.files, readers)
    verify_files(path, {name: manifest.files[name] for name in shares[number]})
    return manifest


def listed_files(run_folder: Path, folder: str, manifest_sha256: str) -> Manifest:
    """Compares the manifest with the ledger's sha256, and the files' names and sizes with the manifest.

    Raises `DataError` as `verify_checkpoint` does.
    """
    path = run_folder / folder
    manifest = load_manifest(path, CHECKPOINT_KIND, manifest_sha256)
    for name, entry in sorted(manifest.files.items()):
        require_size(path / name, entry)
    unnamed = sorted(set(files_in(path)) - set(manifest.files) - {MANIFEST})
    if unnamed:
        raise DataError(f"{path / unnamed[0]}: is in a checkpoint whose manifest does not list it")
    return manifest


def _shares(files: Mapping[str, FileEntry], readers: int) -> list[list[str]]:
    """Divides files among readers so that they read similar amounts."""
    shares: list[list[str]] = [[] for _ in range(readers)]
    sizes = [0] * readers
    for name in sorted(files, key=lambda name: (-files[name].size, name)):
        least = sizes.index(min(sizes))
        shares[least].append(name)
        sizes[least] += files[name].size
    return shares


def files_in(folder: Path) -> list[str]:
    """Returns the relative names of all files in a folder and its subfolders, sorted. Raises `DataError` for a link."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise DataError(f"{path}: a checkpoint must not contain links; put the file itself into the folder")
        if not path.is_dir():
            found.append(path.relative_to(folder).as_posix())
    return found
