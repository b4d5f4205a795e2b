"""What a sampling process must offer: the grid of its times, its steps, and how it is trained.

Time is a number for each image, in float64 on the CPU, and its meaning is the process's own: 1 to 0 for flows, training
levels for denoising. All functions are pure: none knows which step was taken before, unlike the `step` of diffusers'
schedulers.
"""

from __future__ import annotations

from typing import Protocol

import torch

from yatt_core.workloads.diffusion.gaussians import GaussianStep


class SamplingProcess(Protocol):
    """A way from noise to an image in steps. `times` and `afters` are [B], float64; latents and predictions [B, ...]."""

    def grid(self, steps: int) -> torch.Tensor:
        """Returns the times that a number of steps passes, [steps + 1], from noise to image."""

    def model_times(self, times: torch.Tensor) -> torch.Tensor:
        """Returns times as the network is told them, [B], float32."""

    def gaussian(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> GaussianStep:
        """Returns the stochastic step from `times` to `afters`."""

    def straight(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> torch.Tensor:
        """Returns the latents after the deterministic step, in the latents' dtype."""

    def at(self, shares: torch.Tensor) -> torch.Tensor:
        """Returns the times at shares of the way from image to noise, [B]; uniform shares are uniform times.

        shares: [B], float64, from 0 to below 1.
        """

    def noised(self, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """Returns images with the noise of these times, [B, ...]: what the network sees in training."""

    def target(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Returns what the network is to predict for `noised`, [B, ...]."""
