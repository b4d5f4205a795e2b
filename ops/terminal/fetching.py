"""Fetches what a spec names on the Hub, and shows how far that has come.

Consumes the home folder and a spec. Produces the spec with commits and folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ops.presentation.transfer import Transfer

if TYPE_CHECKING:
    from yatt_core.spec import RunSpec


def fetched(home: Path, spec: RunSpec, weights: bool = True, data: bool = True) -> RunSpec:
    """Returns the spec with what it names on the Hub, as `with_repositories` does."""
    from flows.prefect_io.secret_blocks import read_block
    from flows.run.repositories import with_repositories

    with Transfer() as tell:
        return with_repositories(home=home, spec=spec, tell=tell, read_block=read_block, weights=weights, data=data)
