"""Fetches what a run's spec names on the Hub, before the run is created and again where the files are gone since.

Consumes a spec and the home folder, which keeps the files. Produces the spec with commits and folders.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.hub.cache import Tell, silent
from yatt_core.hub.settle import Section, Settling, repositories, settled
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.secret_references import SecretReference
from yatt_core.spec import RunSpec


def with_repositories(
    home: Path, spec: Section, tell: Tell = silent, weights: bool = True, data: bool = True
) -> Section:
    """Returns a spec, of a run or of a suite, with the commit and folder of each repository that it names.

    weights, data: as for `Settling`.

    Raises as `settled` does.
    """
    named = repositories(spec)
    if not named:
        return spec
    block = any(_is_in_a_block(repository.token) for _, repository in named)
    read_block = None
    if block:
        from flows.prefect_io.secret_blocks import read_block  # imports prefect
    return settled(spec, Settling(home, tell, read_block, weights, data))


def require_repositories(home: Path, run_folder: Path, spec: RunSpec) -> None:
    """Fetches what a run was created with and this machine no longer has: its models and, until they are read, its data."""
    with_repositories(home, spec, data=not (run_folder / INPUTS / MANIFEST).exists())


def _is_in_a_block(token: SecretReference | None) -> bool:
    return token is not None and token.prefect_block is not None
