"""The noise of images: a generator of its own for each image and step.

Consumes the seeds of images, which are all that is recorded of a trajectory's randomness. Produces the same numbers whatever
the batch, its order, its dtype and the device: they are drawn in float32 on the CPU, then rounded and moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yatt_core.keys import stable_seed


def image_noise(
    seeds: Sequence[int], step: int, like: torch.Tensor | None = None, *, shape: Sequence[int]
) -> torch.Tensor:
    """Returns standard normal numbers, [B, *shape].

    seeds: one an image.
    step: 0 for the latents at the start, i + 1 for the noise of step i.
    like: has the dtype and the device of the result; float32 on the CPU by default.
    shape: of one image's latents.
    """
    drawn = torch.stack([_numbers(seed, step, shape) for seed in seeds])
    return drawn if like is None else drawn.to(device=like.device, dtype=like.dtype)


def _numbers(seed: int, step: int, shape: Sequence[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(stable_seed("diffusion", seed, step))
    return torch.randn(tuple(shape), generator=generator)
