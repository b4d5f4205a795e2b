"""Losses of diffusion models: GRPO over trajectories, DiffusionNFT, Diffusion-DPO.

Pure functions over predictions and figures of images. Each returns losses by image, so that a batch's loss is their mean
however it is split into micro-batches. Squared errors are means over an image's numbers.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from yatt_core.algorithms.losses.base import clipped_loss
from yatt_core.workloads.diffusion.gaussians import by_image

LEAST_ERROR = 1e-5
"""A mean absolute error below this does not divide: an image predicted exactly has no gradient anyway."""


def grpo_losses(
    log_probabilities: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor, clip: float
) -> torch.Tensor:
    """Returns Flow-GRPO's losses by image, [B] (arXiv 2505.05470), without its KL term.

    The mean over steps of -min(r A, clip(r, 1 - clip, 1 + clip) A), where r is the ratio of a step's densities.

    log_probabilities: [B, W], of the stochastic steps, with gradients.
    sampled: [B, W], those of the sampler.
    advantages: [B].
    """
    ratios = (log_probabilities - sampled).exp()
    return clipped_loss(ratios, advantages[:, None], clip, clip).values.mean(1)


def nft_losses(
    prediction: torch.Tensor,
    old_prediction: torch.Tensor,
    target: torch.Tensor,
    goodness: torch.Tensor,
    strength: float,
) -> torch.Tensor:
    """Returns DiffusionNFT's losses by image, [B] (arXiv 2509.16117).

    q |v+ - v|^2 + (1 - q) |v- - v|^2, where v+ = (1 - b) v_old + b v_new and v- = (1 + b) v_old - b v_new: good images pull the
    prediction towards them, bad ones push its mirror image there.

    prediction: [B, ...], v_new for noised images, with gradients.
    old_prediction: [B, ...], that of the sampler's weights.
    target: [B, ...], v.
    goodness: [B], q from 0 to 1: see `goodness_of`.
    strength: b.
    """
    old = old_prediction.detach()
    towards = (1 - strength) * old + strength * prediction
    away = (1 + strength) * old - strength * prediction
    return goodness * _errors(towards, target) + (1 - goodness) * _errors(away, target)


def normalised_nft_losses(
    prediction: torch.Tensor,
    old_prediction: torch.Tensor,
    target: torch.Tensor,
    *,
    goodness: torch.Tensor,
    times: torch.Tensor,
    strength: float,
) -> torch.Tensor:
    """Returns DiffusionNFT's losses by image, [B], each error weighted by its time (arXiv 2509.16117).

    For a flow, an error of the predicted image is t times the velocity's. Its square is divided by its mean absolute value,
    which has no gradient: t |e|^2 / mean |e| for the velocity's error e. All else as in `nft_losses`.

    times: [B], those of the noised images.
    """
    old = old_prediction.detach()
    towards = (1 - strength) * old + strength * prediction
    away = (1 + strength) * old - strength * prediction
    good = goodness * _weighted_errors(towards, target, times)
    return good + (1 - goodness) * _weighted_errors(away, target, times)


def goodness_of(centred_rewards: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns the probability that an image is a good one, [B]: 0.5 + 0.5 clip(r / scale, -1, 1) (arXiv 2509.16117).

    centred_rewards: [B], without the mean of the prompt's group.
    """
    return 0.5 + 0.5 * (centred_rewards / scale).clamp(-1, 1)


def dpo_losses(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    *,
    chosen_reference: torch.Tensor,
    rejected_reference: torch.Tensor,
    chosen_target: torch.Tensor,
    rejected_target: torch.Tensor,
    strength: float,
) -> torch.Tensor:
    """Returns Diffusion-DPO's losses by pair, [B] (arXiv 2311.12908, equation 14).

    -log sigmoid(-strength ((e_w - e_w,ref) - (e_l - e_l,ref))), where e are the squared errors of predictions for the chosen
    image w and the rejected image l, both noised at one time with one noise.

    chosen, rejected: [B, ...], predictions of the weights that are trained.
    chosen_reference, rejected_reference: [B, ...], those of the reference.
    chosen_target, rejected_target: [B, ...], what was to be predicted.
    strength: beta T omega(lambda) of the paper.
    """
    of_chosen = _errors(chosen, chosen_target) - _errors(chosen_reference.detach(), chosen_target)
    of_rejected = _errors(rejected, rejected_target) - _errors(rejected_reference.detach(), rejected_target)
    return -logsigmoid(-strength * (of_chosen - of_rejected))


def _errors(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (prediction - target).square().flatten(1).mean(1)


def _weighted_errors(prediction: torch.Tensor, target: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    scale = by_image(times, prediction)
    of_images = scale * (prediction - target)
    sizes = of_images.detach().abs().flatten(1).mean(1).clamp(min=LEAST_ERROR)
    return of_images.square().flatten(1).mean(1) / sizes
