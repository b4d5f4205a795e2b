"""What a place of claims has: sizes, and folders of its own for each check."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.claims import Place
from benchmarks.gpu.work import GPU_SIZES, STAND_IN_SIZES, Sizes


def sizes_at(place: Place) -> Sizes:
    """Returns the sizes for a place."""
    return STAND_IN_SIZES if place.stand_in else GPU_SIZES


def new_folder(place: Place, name: str) -> Path:
    """Returns a new folder of a check; a process that takes over from one that died begins anew."""
    number = 0
    while (found := place.folder / f"{name}-{number}").exists():
        number += 1
    found.mkdir(parents=True)
    return found
