"""Fetches what a run's spec names on the Hub, before the run is created and again where the files are gone since.

Consumes a spec and the home folder, which keeps the files. Produces the spec with commits and folders.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.hub.cache import Tell, silent
from yatt_core.hub.settle import Section, Settling, repositories, settled
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.secret_references import BlockReader
from yatt_core.spec import RunSpec


def with_repositories(
    home: Path,
    spec: Section,
    tell: Tell = silent,
    read_block: BlockReader | None = None,
    weights: bool = True,
    data: bool = True,
) -> Section:
    """Returns a spec, of a run or of a suite, with the commit and folder of each repository that it names.

    read_block, weights, data: as for `Settling`.

    Raises as `settled` does.
    """
    if not repositories(spec):
        return spec
    return settled(spec, Settling(home, tell, read_block, weights, data))


def require_repositories(home: Path, run_folder: Path, spec: RunSpec, read_block: BlockReader) -> None:
    """Fetches what a run was created with and this machine no longer has: its models and, until they are read, its data."""
    begun = (run_folder / INPUTS / MANIFEST).exists()
    with_repositories(home, spec, read_block=read_block, data=not begun)
