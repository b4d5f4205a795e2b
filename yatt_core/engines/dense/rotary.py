"""Cosines and sines of positions, as a transformers module computes them; the first half of the sines is negated."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from yatt_core.engines.dense.arithmetic import LANES


class RotaryTable:
    """Cosines and sines of all positions up to the highest one requested so far, and of some beyond it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        inner: Any = model.model
        self._embedding: Any = inner.rotary_emb
        self._like = torch.empty(0, dtype=torch.float32, device=next(model.parameters()).device)
        self._dtype = dtype
        self._cos = self._sin = self._like[:0, None]

    def at(self, positions: torch.Tensor, positions_below: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosine and sine, [rows, 1, head size].

        positions: [rows], all less than `positions_below`.
        """
        if len(self._cos) < positions_below:
            # At least double the size, so that decoding does not rebuild the table for each position.
            count = max(positions_below, 2 * len(self._cos))
            # Whole vectors of the widest processors, so that the last position rounds as it does in a longer table.
            every = torch.arange(-(-count // LANES) * LANES, device=self._like.device)
            cos, sin = self._embedding(self._like, every[None])
            sin[..., : sin.shape[-1] // 2].neg_()
            self._cos, self._sin = (part[0, :, None].to(self._dtype) for part in (cos, sin))
        return self._cos[positions], self._sin[positions]
