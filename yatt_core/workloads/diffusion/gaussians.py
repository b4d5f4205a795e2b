"""Gaussian steps from one latent to the next: drawing, log-probability, divergence.

Consumes a mean and a deviation for each image of a batch. Produces next latents, in the dtype in which they are kept, and
figures by image. All arithmetic is in float32, or float64 for float64 latents. A drawn latent is rounded before its log-
probability is taken: the trainer, which sees the rounded one, then finds the same value. Figures are means over an image's
numbers, as in DDPO (arXiv 2305.13301) and Flow-GRPO (2505.05470), so that ratios do not depend on an image's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class GaussianStep:
    """A step of B images.

    mean: [B, ...].
    deviation: [B], positive; the same for all numbers of an image.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def drawn(self, noise: torch.Tensor, dtype: torch.dtype) -> DrawnStep:
        """Draws the next latents.

        noise: [B, ...], standard normal.
        dtype: the one in which latents are kept, and to which they are rounded before the log-probability is taken.
        """
        spread = by_image(self.deviation, self.mean)
        latents = (self.mean + spread * noise.to(self.mean.dtype)).to(dtype)
        return DrawnStep(
            mean=self.mean, deviation=self.deviation, latents=latents, log_probability=self.log_probability(latents)
        )

    def log_probability(self, latents: torch.Tensor) -> torch.Tensor:
        """Returns the log-density of the latents, [B], as a mean over an image's numbers.

        latents: [B, ...]; without gradients, as they are samples.
        """
        spread = by_image(self.deviation, self.mean)
        distances = (latents.detach().to(self.mean.dtype) - self.mean) / spread
        densities = -0.5 * distances.square() - spread.log() - HALF_LOG_TWO_PI
        return densities.flatten(1).mean(1)

    def divergence(self, reference: GaussianStep) -> torch.Tensor:
        """Returns the KL divergence to a step of the same deviation, [B], as a mean over an image's numbers.

        (mean - mean of the reference)^2 / (2 deviation^2), in closed form (Flow-GRPO, arXiv 2505.05470).
        """
        distances = (self.mean - reference.mean) / by_image(self.deviation, self.mean)
        return 0.5 * distances.square().flatten(1).mean(1)


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step that was taken.

    mean, deviation: those of `GaussianStep`.
    latents: [B, ...], in the dtype in which they are kept.
    log_probability: [B].
    """

    mean: torch.Tensor
    deviation: torch.Tensor
    latents: torch.Tensor
    log_probability: torch.Tensor


def by_image(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns values of images, [B], in the dtype and on the device of a tensor [B, ...] and in a shape that broadcasts to it."""
    return values.to(device=like.device, dtype=like.dtype).reshape(-1, *[1] * (like.dim() - 1))


def computed_in(latents: torch.Tensor) -> torch.Tensor:
    """Returns latents in the dtype of a step's arithmetic: float64 stays, all else becomes float32."""
    return latents.to(torch.promote_types(latents.dtype, torch.float32))
