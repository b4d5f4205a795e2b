"""Restricts a chunk's logits to the tokens that the sampler had left, so that probabilities are renormalised over them.

Consumes the supports of a chunk's tokens; produces masks of the chunk's logits.
"""

from __future__ import annotations

import numpy as np
import torch

from yatt_core.wire.support import Support

EXCLUDED = -1e18
"""The logit of a token outside of a support: its probability is exactly 0. It is finite, so that 0 times it is 0 too."""


def excluded(support: Support, columns: int, device: torch.device, start: int = 0) -> torch.Tensor:
    """Returns which logits are outside of the supports, [n, columns] bool. Tokens beyond the columns are ignored.

    columns: number of columns of the logits.
    start: the token of the first column.
    """
    rows = np.repeat(np.arange(len(support.sizes)), support.sizes)
    places = support.tokens.astype(np.int64) - start
    own = (places >= 0) & (places < columns)
    outside = torch.ones((len(support.sizes), columns), dtype=torch.bool, device=device)
    outside[torch.from_numpy(rows[own]).to(device), torch.from_numpy(places[own]).to(device)] = False
    return outside
