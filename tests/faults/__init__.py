"""Faults of engines, arranged by a test in a run's folder: the product knows nothing of them.

Ray's workers that have `SITE` on their path wrap the engines of their run (`engines.py`). Imports the standard library alone.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SITE = Path(__file__).parent / "site"
PYTHONPATH = os.pathsep.join(str(folder) for folder in (SITE, ROOT))
"""For the environment of a Ray head."""
HANG, NOT_FINITE = "test-hang", "test-not-finite"


def hang_at(run_folder: Path, version: int) -> Path:
    """The first engine that generates with the weights of this version hangs for ever; the returned file is gone by then."""
    file = run_folder / HANG
    file.write_text(str(version))
    return file


def not_finite_at(run_folder: Path, iteration: int) -> None:
    """The loss of this iteration of branch 0 is not finite, as often as it is learnt."""
    (run_folder / NOT_FINITE).write_text(str(iteration))


def claims_hang(run_folder: Path, version: int) -> bool:
    """True for the first engine that finds its version in the file, which it removes."""
    file = run_folder / HANG
    try:
        if int(file.read_text()) != version:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def is_not_finite(run_folder: Path, branch: int, iteration: int) -> bool:
    """Whether the loss of an iteration is to be one that is not finite."""
    file = run_folder / NOT_FINITE
    return branch == 0 and file.exists() and int(file.read_text()) == iteration
