"""The gradient of an update: GRPO over a batch of trajectories, in micro-batches.

Consumes trajectories, advantages and the weights that are trained. Produces gradients, which a caller's optimizer applies,
and what is reported of them. The loss is a mean over images and steps, so that micro-batches add up to the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from yatt_core.algorithms.advantages.base import group_normalised
from yatt_core.workloads.diffusion.losses import grpo_losses
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.trajectories import Trajectory, log_probabilities_of, steps_again


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """The settings of the loss.

    clip: the ratio of densities is clipped at 1 - clip and 1 + clip. Log-densities are means over an image's numbers, so
        that ratios are much nearer to 1 than those of tokens.
    kl: the weight of the divergence to the reference; 0 for none.
    rows: images of a micro-batch.
    """

    clip: float = 1e-3
    kl: float = 0.0
    rows: int = 64


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """What is reported of an update, over all images and steps; 0 where a method has no such thing.

    loss: the mean loss, with its KL term.
    divergence: mean KL divergence to the reference; 0 without one.
    clipped: share of the ratios outside the clip.
    gap: the largest difference between the log-probabilities of trainer and sampler.
    """

    loss: float
    divergence: float = 0.0
    clipped: float = 0.0
    gap: float = 0.0


def group_advantages(rewards: torch.Tensor, sizes: Sequence[int], epsilon: float = 1e-4) -> torch.Tensor:
    """Returns (r - mean(group)) / (std(group) + epsilon), [B], float32.

    rewards: [B], ordered by group.
    sizes: images of each group.
    """
    found = group_normalised(rewards.double().numpy(), np.asarray(sizes, dtype=np.int64), epsilon)
    return torch.from_numpy(found).float()


@dataclass(frozen=True, slots=True)
class BatchLosses:
    """The losses of B images, with gradients.

    losses: [B], with the KL term.
    log_probabilities: [B, W], of the stochastic steps.
    divergences: [B, W]; None without a KL term.
    """

    losses: torch.Tensor
    log_probabilities: torch.Tensor
    divergences: torch.Tensor | None


def losses_of(
    policy: Predictor,
    process: SamplingProcess,
    trajectory: Trajectory,
    advantages: torch.Tensor,
    *,
    settings: GrpoSettings,
    reference: Predictor | None,
) -> BatchLosses:
    """Returns the losses of a micro-batch. The arguments are those of `accumulate_gradients`."""
    steps = steps_again(policy, process, trajectory)
    found = log_probabilities_of(steps, trajectory)
    losses = grpo_losses(found, trajectory.log_probabilities, advantages, settings.clip)
    if not settings.kl or reference is None:
        return BatchLosses(losses, found, None)
    with torch.no_grad():
        others = steps_again(reference, process, trajectory)
    divergences = torch.stack([one.divergence(other) for one, other in zip(steps, others, strict=True)], 1)
    return BatchLosses(losses + settings.kl * divergences.mean(1), found, divergences)


def accumulate_gradients(
    policy: Predictor,
    process: SamplingProcess,
    trajectory: Trajectory,
    advantages: torch.Tensor,
    *,
    settings: GrpoSettings,
    reference: Predictor | None = None,
    weight: float = 1.0,
) -> UpdateFigures:
    """Adds the gradient of the mean loss of all images to the policy's weights.

    advantages: [B].
    weight: the gradient is multiplied by it; what is reported is not.
    reference: predicts with the weights that the policy is kept near to; needed if `settings.kl` is not 0.

    Raises `ValueError` without a reference that is needed.
    """
    if settings.kl and reference is None:
        raise ValueError("a KL term needs a reference")
    count = len(advantages)
    total = dict.fromkeys(("loss", "divergence", "clipped"), 0.0)
    gap = 0.0
    for first in range(0, count, settings.rows):
        rows = slice(first, first + settings.rows)
        part = trajectory.rows(rows)
        found = losses_of(
            policy.rows(rows),
            process,
            part,
            advantages[rows],
            settings=settings,
            reference=None if reference is None else reference.rows(rows),
        )
        if found.divergences is not None:
            total["divergence"] += found.divergences.detach().mean(1).sum().item()
        (weight * found.losses.sum() / count).backward()  # type: ignore[no-untyped-call]
        differences = found.log_probabilities.detach() - part.log_probabilities
        gap = max(gap, differences.abs().max().item())
        total["loss"] += found.losses.detach().sum().item()
        outside = (differences.exp() - 1).abs() > settings.clip
        total["clipped"] += outside.float().mean(1).sum().item()
    return UpdateFigures(
        loss=total["loss"] / count,
        divergence=total["divergence"] / count,
        clipped=total["clipped"] / count,
        gap=gap,
    )
