"""Groups of a batch reduced by several owners, as controllers and ranks may divide them."""

from __future__ import annotations

import numpy as np

from yatt_core.algorithms.moments import GroupMoments, group_moments


def spread(rewards: np.ndarray, sizes: np.ndarray, owners: int) -> GroupMoments:
    """Reduces each owner's groups separately, then puts them into prompt order."""
    groups = np.split(rewards, np.cumsum(sizes)[:-1])
    means = np.zeros(len(sizes))
    squares = np.zeros(len(sizes))
    for owner in range(owners):
        mine = np.arange(owner, len(sizes), owners)
        if len(mine):
            part = group_moments(np.concatenate([groups[index] for index in mine]), sizes[mine])
            means[mine] = part.means
            squares[mine] = part.squares
    return GroupMoments(sizes, means, squares)
