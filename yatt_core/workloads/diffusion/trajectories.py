"""Trajectories: from noise to images, with the log-probabilities of their stochastic steps.

Consumes a predictor, a process and the images' seeds. Produces every latent on the way. A trajectory is a function of weights
and seeds, so that it can be kept as seeds and sampled again, or kept as latents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.workloads.contract import advanced
from yatt_core.workloads.diffusion.gaussians import GaussianStep
from yatt_core.workloads.diffusion.noise import image_noise
from yatt_core.workloads.diffusion.processes import SamplingProcess

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Predicts for latents [B, ...] and the times that a network is told, [B]."""


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How a trajectory is sampled.

    shape: of one image's latents.
    steps: number of steps.
    window: those that are stochastic.
    dtype: the one in which latents are kept.
    """

    shape: tuple[int, ...]
    steps: int
    window: range
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The trajectories of B images.

    latents: steps + 1 tensors [B, ...], the last of which are the images.
    log_probabilities: [B, W], of the stochastic steps.
    window: those W steps.
    """

    latents: tuple[torch.Tensor, ...]
    log_probabilities: torch.Tensor
    window: range

    @property
    def images(self) -> torch.Tensor:
        """The images, [B, ...], float32, from about -1 to 1."""
        return self.latents[-1].float()

    def rows(self, chosen: slice | torch.Tensor) -> Trajectory:
        """Returns the trajectories of some images."""
        return Trajectory(
            latents=tuple(each[chosen] for each in self.latents),
            log_probabilities=self.log_probabilities[chosen],
            window=self.window,
        )


@torch.no_grad()
def sample(predict: Predict, process: SamplingProcess, seeds: Sequence[int], plan: SamplingPlan) -> Trajectory:
    """Samples trajectories.

    seeds: one an image; the trajectory of an image depends on no other's, as far as the predictor's does not.
    """
    grid = process.grid(plan.steps)
    like = torch.empty((), dtype=plan.dtype)
    latents = [image_noise(seeds, 0, like, shape=plan.shape)]
    log_probabilities = []
    for step in range(plan.steps):
        times = grid[step].expand(len(seeds))
        afters = grid[step + 1].expand(len(seeds))
        prediction = predict(latents[-1], process.model_times(times))
        if step in plan.window:
            gaussian = process.gaussian(prediction, latents[-1], times, afters)
            drawn = gaussian.drawn(image_noise(seeds, step + 1, shape=plan.shape), plan.dtype)
            latents.append(drawn.latents)
            log_probabilities.append(drawn.log_probability)
        else:
            latents.append(process.straight(prediction, latents[-1], times, afters))
        advanced()
    found = torch.stack(log_probabilities, 1) if log_probabilities else torch.zeros(len(seeds), 0)
    return Trajectory(tuple(latents), found, plan.window)


def steps_again(predict: Predict, process: SamplingProcess, trajectory: Trajectory) -> list[GaussianStep]:
    """Returns the Gaussians of a trajectory's stochastic steps under a predictor's weights, with gradients.

    Their log-probabilities of the trajectory's latents are those of the sampler if the weights are.
    """
    grid = process.grid(len(trajectory.latents) - 1)
    found = []
    for step in trajectory.window:
        latents = trajectory.latents[step]
        times = grid[step].expand(len(latents))
        afters = grid[step + 1].expand(len(latents))
        prediction = predict(latents, process.model_times(times))
        found.append(process.gaussian(prediction, latents, times, afters))
    return found


def log_probabilities_of(steps: Sequence[GaussianStep], trajectory: Trajectory) -> torch.Tensor:
    """Returns the log-probabilities of a trajectory's stochastic steps, [B, W]. steps: those of `steps_again`."""
    arrivals = [trajectory.latents[step + 1] for step in trajectory.window]
    return torch.stack([step.log_probability(latents) for step, latents in zip(steps, arrivals, strict=True)], 1)


def image_digests(trajectory: Trajectory) -> npt.NDArray[np.int64]:
    """Returns 64 bits of the SHA-256 of each image's numbers, [B]."""
    digests = [hashlib.sha256(image.numpy().tobytes()).digest()[:8] for image in trajectory.images]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def joined(parts: Sequence[Trajectory]) -> Trajectory:
    """Returns the trajectories of several batches, in their order, as one."""
    return Trajectory(
        latents=tuple(torch.cat(each) for each in zip(*(part.latents for part in parts), strict=True)),
        log_probabilities=torch.cat([part.log_probabilities for part in parts]),
        window=parts[0].window,
    )
