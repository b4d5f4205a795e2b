"""Engine faults that a test injects through files in a run's folder; the product contains no hook for them.

Ray workers with `SITE` on their path wrap the engines of their run (`engines.py`). Imports only the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SITE = Path(__file__).parent / "site"
WORKLOADS = ROOT / "examples" / "workloads"
"""Has the package `yatt_workloads`, which is not installed."""
PYTHONPATH = os.pathsep.join(str(folder) for folder in (SITE, ROOT, WORKLOADS))
"""Goes into the environment of a Ray head."""
HANG = "test-hang"
NOT_FINITE = "test-not-finite"
HOLD = "test-hold-copy"
HELD = "test-copy-held"


def hang_at(run_folder: Path, version: int) -> Path:
    """Makes the first engine that generates with these weights hang; it removes the returned file first."""
    file = run_folder / HANG
    file.write_text(str(version))
    return file


def not_finite_at(run_folder: Path, iteration: int) -> None:
    """Makes the loss of an iteration of branch 0 non-finite every time it is learned."""
    (run_folder / NOT_FINITE).write_text(str(iteration))


def claims_hang(run_folder: Path, version: int) -> bool:
    """Returns True for the first engine that finds its version in the file, and removes the file."""
    file = run_folder / HANG
    try:
        if int(file.read_text()) != version:
            return False
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def is_not_finite(run_folder: Path, branch: int, iteration: int) -> bool:
    """Returns whether the loss of an iteration must be non-finite."""
    file = run_folder / NOT_FINITE
    return branch == 0 and file.exists() and int(file.read_text()) == iteration


def hold_copies_of(run_folder: Path, version: int) -> Path:
    """Makes the trainer's ranks hold on while they copy this version, until the returned file is removed."""
    file = run_folder / HOLD
    file.write_text(str(version))
    return file


def copy_is_held(run_folder: Path) -> bool:
    """Returns whether a rank has begun a copy that is held."""
    return (run_folder / HELD).exists()


def claims_hold(run_folder: Path, version: int) -> bool:
    """Returns whether a copy of a version must go on waiting, and notes that it waits."""
    try:
        held = int((run_folder / HOLD).read_text()) == version
    except FileNotFoundError:
        return False
    if held:
        (run_folder / HELD).touch()
    return held
