"""Each loss of diffusion models against its published formula in float64, and its gradient against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from yatt_core.workloads.diffusion.losses import (
    dpo_losses,
    goodness_of,
    grpo_losses,
    nft_losses,
    normalised_nft_losses,
)
from yatt_core.workloads.diffusion.updates import group_advantages

IMAGES = 4
SHAPE = (3, 2, 2)


def tensor(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def images(seed: int) -> torch.Tensor:
    return tensor(seed, IMAGES, *SHAPE)


def mean_square(values: torch.Tensor) -> np.ndarray:
    return (values.numpy() ** 2).reshape(IMAGES, -1).mean(1)


def test_grpo_is_the_clipped_objective_of_each_step() -> None:
    sampled = tensor(1, IMAGES, 3)
    new = sampled + 0.3 * tensor(2, IMAGES, 3)
    advantages = torch.tensor([1.0, -0.5, 0.0, 2.0], dtype=torch.float64)
    found = grpo_losses(new, sampled, advantages, 0.2)
    for image in range(IMAGES):
        wanted = []
        for step in range(3):
            ratio = np.exp(new[image, step].item() - sampled[image, step].item())
            advantage = advantages[image].item()
            wanted.append(-min(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage))
        assert found[image].item() == pytest.approx(np.mean(wanted), abs=1e-12)
    assert torch.autograd.gradcheck(lambda x: grpo_losses(x, sampled, advantages, 0.2), new.requires_grad_(), atol=1e-5)


def test_advantages_are_normalised_within_a_prompts_group() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    found = group_advantages(rewards, [3, 3], epsilon=0.0001)
    group = np.array([1.0, 0.0, 0.0])
    wanted = (group - group.mean()) / (group.std(ddof=1) + 0.0001)
    assert found.tolist() == pytest.approx([*wanted, 0.0, 0.0, 0.0], abs=1e-6)


def nft_reference(new: torch.Tensor, old: torch.Tensor, target: torch.Tensor, q: np.ndarray, b: float) -> np.ndarray:
    good = mean_square((1 - b) * old + b * new - target)
    bad = mean_square((1 + b) * old - b * new - target)
    return q * good + (1 - q) * bad


def test_nft_is_the_published_objective() -> None:
    goodness = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    new = images(1)
    found = nft_losses(new, images(2), images(3), goodness, 0.7)
    assert found.numpy() == pytest.approx(nft_reference(new, images(2), images(3), goodness.numpy(), 0.7), abs=1e-12)

    def loss(prediction: torch.Tensor) -> torch.Tensor:
        return nft_losses(prediction, images(2), images(3), goodness, 0.7)

    assert torch.autograd.gradcheck(loss, new.requires_grad_(), atol=1e-5)


def test_nft_by_images_divides_each_error_by_its_size_which_has_no_gradient() -> None:
    goodness = torch.tensor([0.1, 0.9, 0.5, 1.0], dtype=torch.float64)
    times = torch.tensor([0.2, 0.4, 0.6, 1.0], dtype=torch.float64)
    new = images(1).requires_grad_()
    found = normalised_nft_losses(new, images(2), images(3), goodness=goodness, times=times, strength=0.7)
    found.sum().backward()
    assert new.grad is not None
    for image in range(IMAGES):
        t = times[image].item()
        q = goodness[image].item()
        v = new.detach()[image].numpy()
        old = images(2)[image].numpy()
        target = images(3)[image].numpy()
        good = t * (0.3 * old + 0.7 * v - target)
        bad = t * (1.7 * old - 0.7 * v - target)
        wanted = q * (good**2).mean() / abs(good).mean() + (1 - q) * (bad**2).mean() / abs(bad).mean()
        slope = 2 * t * 0.7 * (q * good / abs(good).mean() - (1 - q) * bad / abs(bad).mean()) / v.size
        assert found[image].item() == pytest.approx(wanted, abs=1e-12)
        assert new.grad[image].numpy() == pytest.approx(slope, abs=1e-12)


def test_nft_without_a_difference_to_the_sampler_moves_towards_good_images_and_away_from_bad_ones() -> None:
    old = images(2)
    for goodness, sign in ((1.0, 1), (0.0, -1)):
        new = old.clone().requires_grad_()
        nft_losses(new, old, images(3), torch.full((IMAGES,), goodness, dtype=torch.float64), 1.0).sum().backward()
        assert new.grad is not None
        assert torch.equal(torch.sign(-new.grad), sign * torch.sign(images(3) - old))


def test_goodness_is_a_clipped_reward_between_0_and_1() -> None:
    assert goodness_of(torch.tensor([-9.0, -0.5, 0.0, 0.25, 9.0]), 0.5).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0]


def dpo(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    return dpo_losses(
        chosen,
        rejected,
        chosen_reference=images(3),
        rejected_reference=images(4),
        chosen_target=images(5),
        rejected_target=images(6),
        strength=2.0,
    )


def test_dpo_is_the_published_objective() -> None:
    chosen = images(1)
    rejected = images(2)
    of_chosen = mean_square(chosen - images(5)) - mean_square(images(3) - images(5))
    of_rejected = mean_square(rejected - images(6)) - mean_square(images(4) - images(6))
    wanted = -np.log(1 / (1 + np.exp(2.0 * (of_chosen - of_rejected))))
    assert dpo(chosen, rejected).numpy() == pytest.approx(wanted, abs=1e-12)
    assert torch.autograd.gradcheck(dpo, (chosen.requires_grad_(), rejected.requires_grad_()), atol=1e-5)
