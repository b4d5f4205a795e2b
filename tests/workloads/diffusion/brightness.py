"""A reward that an untrained model gets too, so that minimal runs learn something."""

from __future__ import annotations

import torch

from yatt_core.workloads.diffusion.drawing import ShapeDrawing


class BrightDrawing(ShapeDrawing):
    """Rewards the mean of an image's numbers."""

    def rewards(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """See `ShapeDrawing`."""
        return images.flatten(1).mean(1)
