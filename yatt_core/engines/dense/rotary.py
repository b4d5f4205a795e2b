"""Cosines and sines of positions, as a module of transformers computes them; sines of the front half have their sign turned."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class RotaryTable:
    """All positions up to the highest asked for so far, and some more."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        inner: Any = model.model
        self._embedding: Any = inner.rotary_emb
        self._like = torch.empty(0, dtype=torch.float32, device=next(model.parameters()).device)
        self._dtype = dtype
        self._cos = self._sin = self._like[:0, None]

    def at(self, positions: torch.Tensor, positions_below: int) -> tuple[torch.Tensor, torch.Tensor]:
        """positions: [rows], all less than `positions_below`. Returns cosine and sine, [rows, 1, head size]."""
        if len(self._cos) < positions_below:
            # Twice as many as before, so that decoding does not make it anew for each position.
            every = torch.arange(max(positions_below, 2 * len(self._cos)), device=self._like.device)
            cos, sin = self._embedding(self._like, every[None])
            sin[..., : sin.shape[-1] // 2].neg_()
            self._cos, self._sin = (part[0, :, None].to(self._dtype) for part in (cos, sin))
        return self._cos[positions], self._sin[positions]
