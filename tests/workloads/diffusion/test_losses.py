"""Each loss of diffusion models against its published formula in float64, and its gradient against finite differences."""

from __future__ import annotations

from collections.abc import Callable

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


def require_gradient(loss: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Asserts that a loss has the gradient that finite differences find, to 1e-5 of it and 1e-5 besides."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(loss, leaves, atol=1e-5, rtol=1e-5)


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
    require_gradient(lambda x: grpo_losses(x, sampled, advantages, 0.2), new)


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

    require_gradient(loss, new)


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


def test_nft_by_images_has_the_gradient_of_finite_differences_while_its_divisors_stand() -> None:
    """The divisors have no gradient by definition, but differences of the loss itself would see them move.

    So differences are taken of the published formula in numpy, whose divisors are those at the point itself.
    """
    goodness = np.array([0.1, 0.9, 0.5, 1.0])
    times = np.array([0.2, 0.4, 0.6, 1.0])[:, None]
    old, target, at = (images(seed).numpy().reshape(IMAGES, -1) for seed in (2, 3, 1))

    def errors(prediction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return times * (0.3 * old + 0.7 * prediction - target), times * (1.7 * old - 0.7 * prediction - target)

    divisors = [abs(each).mean(1) for each in errors(at)]

    def loss(prediction: np.ndarray) -> float:
        good, bad = ((each**2).mean(1) / size for each, size in zip(errors(prediction), divisors, strict=True))
        return float((goodness * good + (1 - goodness) * bad).sum())

    new = images(1).requires_grad_()
    normalised_nft_losses(
        new,
        images(2),
        images(3),
        goodness=torch.from_numpy(goodness),
        times=torch.from_numpy(times[:, 0]),
        strength=0.7,
    ).sum().backward()
    assert new.grad is not None
    steps = 1e-6 * np.eye(at.size).reshape(-1, *at.shape)
    differences = [(loss(at + step) - loss(at - step)) / 2e-6 for step in steps]
    assert new.grad.flatten().numpy() == pytest.approx(np.array(differences), rel=1e-5, abs=1e-5)


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
    require_gradient(dpo, chosen, rejected)
