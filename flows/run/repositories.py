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
    contents: bool = False,
    fetches: bool = True,
) -> Section:
    """Returns a spec, of a run or of a suite, with the commit and folder of each repository that it names.

    read_block, weights, data, contents, fetches: as for `Settling`.

    Raises as `settled` does.
    """
    if not repositories(spec):
        return spec
    settling = Settling(
        home=home,
        tell=tell,
        read_block=read_block,
        weights=weights,
        data=data,
        contents=contents,
        fetches=fetches,
    )
    return settled(spec, settling)


def with_changes(home: Path, spec: RunSpec, read_block: BlockReader) -> RunSpec:
    """Returns a run's changed spec with the commit and folder of each repository that is new in it; others stay as they are."""
    return settled(spec, Settling(home=home, read_block=read_block, fixed=True))


def require_repositories(home: Path, run_folder: Path, spec: RunSpec, read_block: BlockReader) -> None:
    """Fetches what a run was created with and this machine no longer has: its models and, until they are read, its data."""
    if repositories(spec):
        begun = (run_folder / INPUTS / MANIFEST).exists()
        settled(spec, Settling(home=home, read_block=read_block, data=not begun, fixed=True))
