"""Images as they were sampled, noised anew by the forward process: what DiffusionNFT and Diffusion-DPO learn from.

Consumes images and their seeds. Produces noised images whose time and noise are a function of an image's seed and the number of
the noising alone: an image's seed is made from the run's seed, the draw and the image, so that an update that is made again after
a crash, on other ranks or with other neighbours, sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from yatt_core.keys import stable_seed
from yatt_core.workloads.diffusion.processes import SamplingProcess


@dataclass(frozen=True, slots=True)
class Noised:
    """B noised images.

    latents: [B, ...].
    times: [B], float64, of the process.
    targets: [B, ...], what the network is to predict.
    """

    latents: torch.Tensor
    times: torch.Tensor
    targets: torch.Tensor


@dataclass(frozen=True, slots=True)
class CleanImages:
    """B images.

    images: [B, ...].
    seeds: B seeds, from which times and noise are drawn.
    """

    images: torch.Tensor
    seeds: tuple[int, ...]

    def rows(self, chosen: Sequence[int]) -> CleanImages:
        """Returns some of the images."""
        return CleanImages(self.images[list(chosen)], tuple(self.seeds[place] for place in chosen))

    def noised(self, process: SamplingProcess, number: int) -> Noised:
        """Returns the images with noise. number: counts the noisings of an image, from 0."""
        drawn = [_drawn(seed, number, self.images.shape[1:]) for seed in self.seeds]
        times = process.at(torch.stack([share for share, _ in drawn]))
        noise = torch.stack([numbers for _, numbers in drawn]).to(self.images.dtype)
        return Noised(process.noised(self.images, noise, times), times, process.target(self.images, noise))


def _drawn(seed: int, number: int, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a uniform share from 0 to below 1, float64, and standard normal numbers, [*shape], float32."""
    generator = torch.Generator().manual_seed(stable_seed("noised", seed, number))
    share = torch.rand((), generator=generator, dtype=torch.float64)
    return share, torch.randn(tuple(shape), generator=generator)
