"""The noise of what a run begins with, such as weights: a generator of torch for each purpose, by the run's seed.

The seed is hashed with the purpose, so that it may have any size, and no two purposes, numbers or seeds share a stream.
"""

from __future__ import annotations

import torch

from yatt_core.workloads.contract import Draw


def initial_seed(seed: int, purpose: str, *parts: int) -> int:
    """Returns a seed of 64 bits for a purpose of a run with a seed, and numbers, such as a member's."""
    return Draw(seed=seed, iteration=0, number=0).seed_of(f"initial {purpose}", *parts)


def initial_noise(seed: int, purpose: str, *parts: int) -> torch.Generator:
    """Returns a generator with the seed of `initial_seed`."""
    return torch.Generator().manual_seed(initial_seed(seed, purpose, *parts))
