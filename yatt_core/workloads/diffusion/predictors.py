"""Predictions of a network whose bits depend on an image alone, not on its neighbours in the batch.

Products of one to three rows take another path through the processor's libraries than larger ones, so a transformer's batch is
filled up to four images. A convolution's sums depend on the whole batch's size, so a UNet sees batches of one size. What
fills a batch up repeats its last image, is cut off afterwards, and has no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from yatt_core.workloads.diffusion.conditions import Conditions
from yatt_core.workloads.diffusion.forwards import FORWARDS
from yatt_core.workloads.diffusion.networks import UNET, kind_of

LEAST_ROWS = 4
"""Images of the smallest batch that a transformer sees."""
UNET_ROWS = 8
"""Images of each batch that a UNet sees."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A network and what it draws images for; a call predicts for latents, [B, ...], and times, [B]."""

    network: nn.Module
    conditions: Conditions

    def __call__(self, latents: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Returns predictions, [B, ...], in the latents' dtype. times: those that the network is told, from 0 to 1000."""
        if kind_of(self.network) != UNET:
            return self._filled(latents, times, slice(None), LEAST_ROWS)
        parts = [slice(first, first + UNET_ROWS) for first in range(0, len(latents), UNET_ROWS)]
        return torch.cat([self._filled(latents, times, part, UNET_ROWS) for part in parts])

    def rows(self, chosen: slice | torch.Tensor) -> Predictor:
        """Returns a predictor for some of the images."""
        return Predictor(self.network, self.conditions.rows(chosen))

    def _filled(self, latents: torch.Tensor, times: torch.Tensor, part: slice, least: int) -> torch.Tensor:
        chosen = latents[part]
        conditions = self.conditions.rows(part).to(latents.dtype)
        told = times[part]
        count = len(chosen)
        if count < least:
            rows = torch.arange(least).clamp(max=count - 1)
            chosen = chosen[rows]
            conditions = conditions.rows(rows)
            told = told[rows]
        return FORWARDS[kind_of(self.network)](self.network, chosen, told, conditions)[:count]
