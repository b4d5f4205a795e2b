"""The gradient of a whole update by each method against differences of its published objective, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.needs import NEEDS_DIFFUSERS
from yatt_core.workloads.diffusion.clean_images import CleanImages
from yatt_core.workloads.diffusion.conditions import make_words
from yatt_core.workloads.diffusion.denoising import DenoisingProcess
from yatt_core.workloads.diffusion.drawing_settings import (
    NETWORKS,
    DrawingSettings,
    network_settings,
    objective_of,
)
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.networks import make_network
from yatt_core.workloads.diffusion.objectives import LearntBatch, best_and_worst
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE, WORDS
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, Trajectory, sample
from yatt_core.workloads.diffusion.updates import group_advantages

pytestmark = NEEDS_DIFFUSERS
SMALL = {"heads": 2, "head_width": 8, "layers": 1, "patch": 2, "word_width": 16, "group": 3, "rows": 6}
GROUP = 3
REWARDS = torch.tensor([0.0, 1.0, 0.5, 0.25, 0.25, 0.25, 3.0, -1.0, 2.0], dtype=torch.float64)
"""Of three groups, the second of which is a tie."""
PLACES = range(len(REWARDS))
ASKED = [PROMPTS[place // GROUP] for place in PLACES]
SEEDS = tuple(100 + place for place in PLACES)
IMAGES = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (len(REWARDS), *SHAPE)))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def settings_of(**own: Any) -> DrawingSettings:
    return DrawingSettings.model_validate({**SMALL, **own})


def predictor(settings: DrawingSettings, seed: int) -> Predictor:
    network = make_network(NETWORKS[settings.network], network_settings(settings), seed).double()
    return Predictor(network, make_words(WORDS, 16, 2, seed=0).encode(ASKED))


def near(policy: Predictor, settings: DrawingSettings) -> Predictor:
    """Returns weights a little away from the policy's, as those of a reference are."""
    other = predictor(settings, 1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in other.network.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator).double(), alpha=1e-3)
    return other


def clean_batch(pairs: bool = False) -> LearntBatch:
    """A batch whose images alone are learnt from."""
    advantages = group_advantages(REWARDS, [GROUP] * 3).double()
    trajectory = Trajectory((IMAGES,), torch.zeros(len(REWARDS), 0), range(0))
    return LearntBatch(
        prompts=ASKED,
        trajectory=trajectory,
        advantages=advantages,
        seeds=SEEDS,
        share=1.0,
        pairs=best_and_worst(advantages, GROUP) if pairs else None,
    )


def slopes(network: nn.Module, objective: Callable[[], float]) -> tuple[float, float]:
    """Returns the slope along a random direction of all weights: by the gradient that they have, and by differences."""
    generator = torch.Generator().manual_seed(3)
    learnt = [(weight, weight.grad) for weight in network.parameters() if weight.grad is not None]
    directions = [torch.randn(weight.shape, generator=generator).double() for weight, _ in learnt]
    slope = sum((grad * each).sum().item() for (_, grad), each in zip(learnt, directions, strict=True))

    @torch.no_grad()
    def at(length: float) -> float:
        for (weight, _), each in zip(learnt, directions, strict=True):
            weight.add_(each, alpha=length)
        found = objective()
        for (weight, _), each in zip(learnt, directions, strict=True):
            weight.sub_(each, alpha=length)
        return found

    return slope, (at(1e-5) - at(-1e-5)) / 2e-5


def noised(process: SamplingProcess, place: int, number: int, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns time, noise and noised image by the flow's definition x = (1 - t) image + t noise, of one image."""
    found = CleanImages(IMAGES[place : place + 1], (seed,)).noised(process, number)
    time = found.times.item()
    image = IMAGES[place].numpy()
    noise = found.targets[0].numpy() + image
    latents = (1 - time) * image + time * noise
    assert found.latents[0].numpy() == pytest.approx(latents, abs=1e-12)
    return time, noise - image, latents


def predicted(predict: Predictor, place: int, latents: np.ndarray, time: float) -> np.ndarray:
    told = torch.tensor([1000 * time], dtype=torch.float32)
    with torch.no_grad():
        found = predict.rows(slice(place, place + 1))(torch.from_numpy(latents)[None], told)
    return found[0].numpy()


@pytest.mark.parametrize("weighting", ["adaptive", "none"])
def test_nft_learns_by_the_published_objective_over_noised_images(weighting: str) -> None:
    """q |v+ - v|^2 + (1 - q) |v- - v|^2 by arXiv 2509.16117, also divided by the sizes of the images' errors."""
    settings = settings_of(method="nft", strength=0.8, noisings=2, weighting=weighting, reward_clip=1.1)
    policy = predictor(settings, 1)
    old = near(policy, settings)
    process = settings.process
    found = objective_of(settings).accumulate(policy, process, clean_batch(), other=old)
    cases = [(place, number) for place in PLACES for number in range(2)]
    seen = {case: noised(process, case[0], case[1], SEEDS[case[0]]) for case in cases}

    def errors(case: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        time, velocity, latents = seen[case]
        new = predicted(policy, case[0], latents, time)
        of_old = predicted(old, case[0], latents, time)
        scale = time if weighting == "adaptive" else 1.0
        good = scale * (0.2 * of_old + 0.8 * new - velocity)
        bad = scale * (1.8 * of_old - 0.8 * new - velocity)
        return good, bad

    sizes = {case: [abs(each).mean() if weighting == "adaptive" else 1.0 for each in errors(case)] for case in cases}

    def objective() -> float:
        total = 0.0
        for case in cases:
            group = REWARDS[case[0] // GROUP * GROUP :][:GROUP].numpy()
            centred = (REWARDS[case[0]].item() - group.mean()) / (group.std(ddof=1) + 1e-4)
            goodness = 0.5 + 0.5 * np.clip(centred / 1.1, -1, 1)
            good, bad = errors(case)
            total += goodness * (good**2).mean() / sizes[case][0] + (1 - goodness) * (bad**2).mean() / sizes[case][1]
        return total / len(cases)

    assert found.loss == pytest.approx(objective(), rel=1e-6)
    slope, difference = slopes(policy.network, objective)
    assert slope == pytest.approx(difference, rel=1e-5) and abs(slope) > 1e-3


def test_dpo_learns_by_the_published_objective_over_the_pairs_that_differ() -> None:
    """-log sigmoid(-s ((e_w - e_w,ref) - (e_l - e_l,ref))) of arXiv 2311.12908; of three groups, one is a tie."""
    settings = settings_of(method="dpo", strength=20.0, noisings=2)
    policy = predictor(settings, 1)
    reference = near(policy, settings)
    process = settings.process
    found = objective_of(settings).accumulate(policy, process, clean_batch(pairs=True), other=reference)

    def error(predict: Predictor, place: int, number: int, seed: int) -> float:
        time, velocity, latents = noised(process, place, number, seed)
        return float(((predicted(predict, place, latents, time) - velocity) ** 2).mean())

    def objective() -> float:
        losses = []
        for chosen, rejected in ((1, 0), (6, 7)):
            for number in range(2):
                gains = [
                    error(policy, place, number, SEEDS[chosen]) - error(reference, place, number, SEEDS[chosen])
                    for place in (chosen, rejected)
                ]
                losses.append(math.log1p(math.exp(20.0 * (gains[0] - gains[1]))))
        return float(np.mean(losses))

    assert found.loss == pytest.approx(objective(), rel=1e-6)
    slope, difference = slopes(policy.network, objective)
    assert slope == pytest.approx(difference, rel=1e-5) and abs(slope) > 1e-3


def test_ddpo_learns_by_the_published_objective_over_a_unets_steps() -> None:
    """-ratio x advantage of every step with noise (arXiv 2305.13301), whose densities are those of DDIM's steps (2010.02502)."""
    settings = settings_of(method="ddpo", network="unet", steps=3, clip=10.0, eta=0.8)
    policy = predictor(settings, 1)
    process = settings.process
    assert isinstance(process, DenoisingProcess)
    drawn = sample(policy, process, list(SEEDS), SamplingPlan(SHAPE, 3, settings.window_at(1), torch.float64))
    assert drawn.log_probabilities.shape == (len(REWARDS), 2), "all steps but the last"
    batch = clean_batch()
    batch = LearntBatch(ASKED, drawn, batch.advantages, seeds=SEEDS, share=1.0)
    found = objective_of(settings).accumulate(policy, process, batch, other=None)
    assert found.gap <= 1e-12 and found.divergence == 0.0
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    levels = [999, 666, 332]
    advantages = batch.advantages.numpy()

    def objective() -> float:
        total = 0.0
        for step in range(2):
            a = kept[levels[step]]
            b = kept[levels[step + 1]]
            latents = drawn.latents[step]
            noise = policy(latents, torch.full((len(REWARDS),), float(levels[step]))).detach().numpy()
            deviation = 0.8 * math.sqrt((1 - b) / (1 - a)) * math.sqrt(1 - a / b)
            image = (latents.numpy() - math.sqrt(1 - a) * noise) / math.sqrt(a)
            mean = math.sqrt(b) * image + math.sqrt(1 - b - deviation**2) * noise
            distances = (drawn.latents[step + 1].numpy() - mean) / deviation
            densities = -0.5 * distances**2 - math.log(deviation) - 0.5 * math.log(2 * math.pi)
            logs = densities.reshape(len(REWARDS), -1).mean(1)
            total -= (np.exp(logs - drawn.log_probabilities[:, step].numpy()) * advantages).mean()
        return float(total / 2)

    slope, difference = slopes(policy.network, objective)
    assert slope == pytest.approx(difference, rel=1e-4) and abs(slope) > 1e-4


def test_pairs_are_the_first_best_and_the_first_worst_and_ties_do_not_count() -> None:
    found = best_and_worst(torch.tensor([1.0, 2.0, 2.0, 5.0, 5.0, 5.0, 0.0, 0.0, -1.0]), 3)
    assert found.chosen == (1, 3, 6) and found.rejected == (0, 3, 8)
    assert found.counted == (True, False, True) and found.count == 2


def test_the_noise_of_an_image_is_a_function_of_its_seed_and_number_alone() -> None:
    process = FlowProcess()
    whole = CleanImages(IMAGES, SEEDS)
    one = whole.noised(process, 1)
    part = whole.rows([7, 2]).noised(process, 1)
    assert torch.equal(part.latents, one.latents[[7, 2]]) and torch.equal(part.times, one.times[[7, 2]])
    assert not torch.equal(whole.noised(process, 0).times, one.times)
    assert len(set(one.times.tolist())) == len(SEEDS)
    levels = whole.noised(DenoisingProcess(), 1).times
    assert torch.equal(levels, (one.times * 1000).floor()), "whole levels, from the same draw"
