"""The folder into which files of a repository of the Hub were fetched: which of them have the rows of a split.

Consumes a source whose revision is pinned. Produces the names of files, in the order in which they are read.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import Manifest, load_manifest
from yatt_core.spec.sections.data import HubSource

HUB_FILES = "hub"
"""The kind of the manifest."""
SPLITS = "splits"
"""Field of the manifest: the names of the files of each split."""


def fetched_manifest(folder: Path, sha256: str) -> Manifest:
    """Returns the manifest beside a folder of fetched files.

    sha256: of the manifest, as pinned.

    Raises `ConfigurationError` if the folder is gone or is not what was pinned.
    """
    try:
        return load_manifest(folder.parent, HUB_FILES, sha256)
    except DataError as error:
        raise ConfigurationError(f"{error}; delete {folder.parent}, and the files are fetched again") from None


def files_of_split(source: HubSource, split: str) -> list[str]:
    """Returns the names of the files of a split, relative to the source's folder."""
    if source.pinned is None:
        raise ConfigurationError(f"data.sources: {source.repo} has not been fetched; `yatt fetch SPEC` fetches it")
    manifest = fetched_manifest(Path(source.path), source.pinned.manifest)
    return list(manifest.fields[SPLITS][split])
