"""Lengths of synthetic responses and judgements. Consumes noise; produces numbers of tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def log_normal_lengths(noise: npt.NDArray[np.float64], median: float, sigma: float) -> npt.NDArray[np.float64]:
    """Returns integral log-normal lengths of at least 1, [rows], by the Box-Muller transform.

    noise: [rows, 2] in [0, 1).
    """
    normal = np.sqrt(-2.0 * np.log(1.0 - noise[:, 0])) * np.cos(2.0 * np.pi * noise[:, 1])
    lengths: npt.NDArray[np.float64] = np.maximum(np.rint(median * np.exp(sigma * normal)), 1.0)
    return lengths
