"""The pools of a curriculum in a run's inputs: which training prompts belong to which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import DataError
from yatt_core.protocols.receipts import PromptPool
from yatt_core.spec.sections.data import DataSpec

POOLS = "pools"
"""Manifest key of the pools into which a curriculum divides the sources."""
POOL_FILE = "pools.npy"
"""The pool of each training prompt, [N], int32; only if a curriculum divides the sources."""


def prompt_pools(data: DataSpec, manifest: Mapping[str, Any]) -> tuple[PromptPool, ...]:
    """Returns the pools of a run's inputs; empty without a curriculum."""
    if data.curriculum is None:
        return ()
    if POOLS in manifest:
        return tuple(PromptPool(**pool) for pool in manifest[POOLS])
    sizes = zip(data.source_names, manifest["train_sizes"], strict=True)
    return tuple(PromptPool(name, source, size) for source, (name, size) in enumerate(sizes))


def read_pools(folder: Path, pools: int) -> list[npt.NDArray[np.int64]]:
    """Returns the training prompts of each pool as their numbers in the file, in order. Raises `DataError`."""
    path = folder / POOL_FILE
    try:
        of_prompt: npt.NDArray[np.int32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}; restore it, or start a new run") from None
    return [np.flatnonzero(of_prompt == pool) for pool in range(pools)]
