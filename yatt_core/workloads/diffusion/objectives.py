"""What a run learns from a batch of its images: one class for each method, with its published objective.

Consumes sampled images, their advantages and the networks of the run. Produces gradients, added to the policy's weights, and what
is reported of them. All passes of a batch have shapes that its settings decide alone, never its rewards: ranks that share a
network make the same passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from yatt_core.workloads.diffusion.clean_images import CleanImages
from yatt_core.workloads.diffusion.losses import dpo_losses, goodness_of, nft_losses, normalised_nft_losses
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.trajectories import Trajectory
from yatt_core.workloads.diffusion.updates import GrpoSettings, UpdateFigures, accumulate_gradients, losses_of


@dataclass(frozen=True, slots=True)
class Pairs:
    """The best and the worst image of each group, by their places.

    counted: whether the two differ; a pair that does not count has the weight 0.
    """

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    counted: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Pairs that count."""
        return sum(self.counted)


def best_and_worst(values: torch.Tensor, group: int) -> Pairs:
    """Returns the pairs of images, the first of several that are equal.

    values: [B], rewards or advantages.
    group: images of a group; groups follow one another.
    """
    table = values.numpy().reshape(-1, group)
    starts = np.arange(len(table)) * group
    best = table.argmax(1)
    worst = table.argmin(1)
    return Pairs(
        chosen=tuple((starts + best).tolist()),
        rejected=tuple((starts + worst).tolist()),
        counted=tuple((table.max(1) > table.min(1)).tolist()),
    )


@dataclass(frozen=True, slots=True)
class LearntBatch:
    """Images that an update computes a gradient of at once.

    trajectory: ends with the images.
    advantages: [B], normalised within the group of a prompt; groups follow one another.
    seeds: one an image.
    share: the gradient of the batch's mean loss counts so much in that of the iteration.
    pairs: of a method that compares images; None for others.
    """

    prompts: list[str]
    trajectory: Trajectory
    advantages: torch.Tensor
    seeds: tuple[int, ...]
    share: float
    pairs: Pairs | None = None

    @property
    def images(self) -> CleanImages:
        """The images, in the dtype in which latents are kept."""
        return CleanImages(self.trajectory.latents[-1], self.seeds)


class Objective(Protocol):
    """The objective of a method."""

    @property
    def rows(self) -> int:
        """Most images of a pass."""

    def losses(
        self, policy: Predictor, process: SamplingProcess, batch: LearntBatch, other: Predictor | None
    ) -> Iterator[torch.Tensor]:
        """Yields the losses of each pass, with gradients, whose sum is the mean loss of the batch. For what a pass takes."""

    def accumulate(
        self,
        policy: Predictor,
        process: SamplingProcess,
        batch: LearntBatch,
        *,
        other: Predictor | None,
        weight: float = 1.0,
    ) -> UpdateFigures:
        """Adds the gradient of the batch's mean loss, times a weight, to the policy's weights.

        other: predicts with the weights that the policy is compared with; None if there are none.
        weight: what is reported does not have it.
        """


@dataclass(frozen=True, slots=True)
class TrajectoryObjective:
    """Clipped ratios of stochastic steps: Flow-GRPO (arXiv 2505.05470), also with a KL term, and DDPO's DDPO-IS (2305.13301)."""

    settings: GrpoSettings

    @property
    def rows(self) -> int:
        """See `Objective`."""
        return self.settings.rows

    def losses(
        self, policy: Predictor, process: SamplingProcess, batch: LearntBatch, other: Predictor | None
    ) -> Iterator[torch.Tensor]:
        """See `Objective`: those of a batch that is one pass."""
        found = losses_of(policy, process, batch.trajectory, batch.advantages, settings=self.settings, reference=other)
        yield found.losses / len(batch.prompts)

    def accumulate(
        self,
        policy: Predictor,
        process: SamplingProcess,
        batch: LearntBatch,
        *,
        other: Predictor | None,
        weight: float = 1.0,
    ) -> UpdateFigures:
        """See `Objective`."""
        return accumulate_gradients(
            policy,
            process,
            batch.trajectory,
            batch.advantages,
            settings=self.settings,
            reference=other,
            weight=weight,
        )


class _ForwardObjective:
    """Learns from noised images: the mean loss is the sum of what all passes yield."""

    def losses(
        self, policy: Predictor, process: SamplingProcess, batch: LearntBatch, other: Predictor | None
    ) -> Iterator[torch.Tensor]:
        """See `Objective`."""
        raise NotImplementedError

    def accumulate(
        self,
        policy: Predictor,
        process: SamplingProcess,
        batch: LearntBatch,
        *,
        other: Predictor | None,
        weight: float = 1.0,
    ) -> UpdateFigures:
        """See `Objective`."""
        total = 0.0
        for losses in self.losses(policy, process, batch, other):
            (weight * losses.sum()).backward()  # type: ignore[no-untyped-call]
            total += losses.detach().sum().item()
        return UpdateFigures(loss=total)


@dataclass(frozen=True, slots=True)
class NftObjective(_ForwardObjective):
    """DiffusionNFT (arXiv 2509.16117).

    The other predictor is that of the weights that the images were sampled from; None if these are the policy's.

    strength: b.
    noisings: of each image.
    reward_clip: advantages at which an image is certainly good, or certainly not.
    adaptive: whether errors are those of images, each divided by its size.
    rows: images of a pass.
    """

    strength: float
    noisings: int
    reward_clip: float
    adaptive: bool
    rows: int

    def losses(
        self, policy: Predictor, process: SamplingProcess, batch: LearntBatch, other: Predictor | None
    ) -> Iterator[torch.Tensor]:
        """See `Objective`."""
        count = len(batch.prompts)
        goodness = goodness_of(batch.advantages, self.reward_clip)
        for first in range(0, count, self.rows):
            rows = slice(first, first + self.rows)
            part = batch.images.rows(range(count)[rows])
            for number in range(self.noisings):
                noised = part.noised(process, number)
                told = process.model_times(noised.times)
                prediction = policy.rows(rows)(noised.latents, told)
                with torch.no_grad():
                    old = prediction if other is None else other.rows(rows)(noised.latents, told)
                if self.adaptive:
                    found = normalised_nft_losses(
                        prediction,
                        old,
                        noised.targets,
                        goodness=goodness[rows],
                        times=noised.times,
                        strength=self.strength,
                    )
                else:
                    found = nft_losses(prediction, old, noised.targets, goodness=goodness[rows], strength=self.strength)
                yield found / (count * self.noisings)


@dataclass(frozen=True, slots=True)
class DpoObjective(_ForwardObjective):
    """Diffusion-DPO (arXiv 2311.12908): a group's best image against its worst, both noised at one time with one noise.

    The other predictor is the reference. The mean is that of the pairs that count.

    strength: beta T omega(lambda) of the paper.
    noisings: of each pair.
    rows: images of a pass; a pair has two.
    """

    strength: float
    noisings: int
    rows: int

    def losses(
        self, policy: Predictor, process: SamplingProcess, batch: LearntBatch, other: Predictor | None
    ) -> Iterator[torch.Tensor]:
        """See `Objective`. Raises `ValueError` without pairs or a reference."""
        pairs = batch.pairs
        if pairs is None or other is None:
            raise ValueError("a batch needs pairs, and a reference to compare them with")
        weights = torch.tensor(pairs.counted, dtype=torch.float64) / (max(1, pairs.count) * self.noisings)
        size = max(1, self.rows // 2)
        for first in range(0, len(pairs.chosen), size):
            part = slice(first, first + size)
            places = [*pairs.chosen[part], *pairs.rejected[part]]
            middle = len(places) // 2
            # Both images of a pair are noised from the seed of the better one.
            seeds = batch.images.rows(places[:middle]).seeds * 2
            images = CleanImages(batch.images.images[places], seeds)
            rows = torch.tensor(places)
            for number in range(self.noisings):
                noised = images.noised(process, number)
                told = process.model_times(noised.times)
                prediction = policy.rows(rows)(noised.latents, told)
                with torch.no_grad():
                    reference = other.rows(rows)(noised.latents, told)
                found = dpo_losses(
                    prediction[:middle],
                    prediction[middle:],
                    chosen_reference=reference[:middle],
                    rejected_reference=reference[middle:],
                    chosen_target=noised.targets[:middle],
                    rejected_target=noised.targets[middle:],
                    strength=self.strength,
                )
                yield found * weights[part].to(found.dtype)
