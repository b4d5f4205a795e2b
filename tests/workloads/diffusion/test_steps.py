"""Steps between latents against the published formulas in float64, their gradients, and what is rounded when."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from yatt_core.workloads.diffusion.denoising import DenoisingProcess
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.gaussians import GaussianStep
from yatt_core.workloads.diffusion.noise import image_noise
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.window import StepWindow

SHAPE = (3, 2, 2)
TIMES = torch.tensor([1.0, 0.75, 0.5], dtype=torch.float64)
AFTERS = torch.tensor([0.75, 0.5, 0.0], dtype=torch.float64)
LEVELS = torch.tensor([999.0, 666.0, 332.0], dtype=torch.float64)
NEXT = torch.tensor([666.0, 332.0, 100.0], dtype=torch.float64)


def numbers(seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((3, *SHAPE), generator=generator, dtype=torch.float64).to(dtype)


def flow_reference(v: float, x: float, t: float, after: float) -> tuple[float, float]:
    """Flow-GRPO's SDE (arXiv 2505.05470), one number at a time: returns mean and deviation."""
    dt = after - t
    sigma = 0.7 * math.sqrt(t / (1 - (after if t == 1 else t)))
    drift = v + sigma**2 / (2 * t) * (x + (1 - t) * v)
    return x + drift * dt, sigma * math.sqrt(-dt)


def denoising_reference(e: float, x: float, t: float, after: float) -> tuple[float, float]:
    """DDIM's step (arXiv 2010.02502), one number at a time."""
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))
    a = kept[int(t)]
    b = kept[int(after)]
    s = 0.5 * math.sqrt((1 - b) / (1 - a)) * math.sqrt(1 - a / b)
    image = (x - math.sqrt(1 - a) * e) / math.sqrt(a)
    return math.sqrt(b) * image + math.sqrt(1 - b - s * s) * e, s


CASES = [
    pytest.param(FlowProcess(0.7), flow_reference, TIMES, AFTERS, id="flow"),
    pytest.param(DenoisingProcess(0.5), denoising_reference, LEVELS, NEXT, id="denoising"),
]


@pytest.mark.parametrize(("process", "reference", "times", "afters"), CASES)
def test_a_step_is_the_published_one(
    process: SamplingProcess, reference: Callable[..., tuple[float, float]], times: torch.Tensor, afters: torch.Tensor
) -> None:
    prediction = numbers(1)
    latents = numbers(2)
    noise = numbers(3)
    drawn = process.gaussian(prediction, latents, times, afters).drawn(noise, torch.float64)
    for image in range(3):
        densities = []
        for place in np.ndindex(SHAPE):
            at = (image, *place)
            mean, deviation = reference(
                prediction[at].item(), latents[at].item(), times[image].item(), afters[image].item()
            )
            after = mean + deviation * noise[at].item()
            assert drawn.mean[at].item() == pytest.approx(mean, abs=1e-12)
            assert drawn.deviation[image].item() == pytest.approx(deviation, abs=1e-12)
            assert drawn.latents[at].item() == pytest.approx(after, abs=1e-12)
            variance = deviation**2
            densities.append(-((after - mean) ** 2) / (2 * variance) - 0.5 * math.log(2 * math.pi * variance))
        assert drawn.log_probability[image].item() == pytest.approx(np.mean(densities), abs=1e-12)


@pytest.mark.parametrize(("process", "reference", "times", "afters"), CASES)
def test_the_gradient_of_a_log_probability_is_that_of_finite_differences(
    process: SamplingProcess, reference: object, times: torch.Tensor, afters: torch.Tensor
) -> None:
    latents = numbers(2)
    arrival = numbers(3)

    def density(prediction: torch.Tensor) -> torch.Tensor:
        return process.gaussian(prediction, latents, times, afters).log_probability(arrival)

    assert torch.autograd.gradcheck(density, numbers(1).requires_grad_(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("process", "reference", "times", "afters"), CASES)
def test_without_noise_the_deterministic_step_is_the_limit(
    process: SamplingProcess, reference: object, times: torch.Tensor, afters: torch.Tensor
) -> None:
    still = FlowProcess(1e-9) if isinstance(process, FlowProcess) else DenoisingProcess(1e-9)
    stochastic = still.gaussian(numbers(1), numbers(2), times, afters).mean
    assert torch.allclose(stochastic, still.straight(numbers(1), numbers(2), times, afters), atol=1e-12)


def test_the_divergence_is_that_of_two_gaussians() -> None:
    process = FlowProcess(0.7)
    ours = process.gaussian(numbers(1), numbers(2), TIMES, AFTERS)
    theirs = process.gaussian(numbers(4), numbers(2), TIMES, AFTERS)
    deviation = ours.deviation[:, None, None, None].expand_as(ours.mean)
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Normal(ours.mean, deviation), torch.distributions.Normal(theirs.mean, deviation)
    )
    assert torch.allclose(ours.divergence(theirs), wanted.flatten(1).mean(1), atol=1e-12)
    # Flow-GRPO's own form, by velocities; the first image begins at t = 1, where its 1 - t is that of the step's end.
    t = TIMES[1:]
    sigma = 0.7 * (t / (1 - t)).sqrt()
    factor = (t - AFTERS[1:]) / 2 * (sigma * (1 - t) / (2 * t) + 1 / sigma).square()
    published = factor * (numbers(1) - numbers(4))[1:].square().flatten(1).mean(1)
    assert torch.allclose(ours.divergence(theirs)[1:], published, atol=1e-12)


@pytest.mark.parametrize(("process", "reference", "times", "afters"), CASES)
def test_the_gradient_of_a_divergence_is_that_of_finite_differences(
    process: SamplingProcess, reference: object, times: torch.Tensor, afters: torch.Tensor
) -> None:
    latents = numbers(2)
    theirs = process.gaussian(numbers(4), latents, times, afters)

    def divergence(prediction: torch.Tensor) -> torch.Tensor:
        return process.gaussian(prediction, latents, times, afters).divergence(theirs)

    assert torch.autograd.gradcheck(divergence, numbers(1).requires_grad_(), atol=1e-5, rtol=1e-5)


def test_the_state_is_rounded_before_its_log_probability_is_taken() -> None:
    step = GaussianStep(numbers(1, torch.float32), torch.tensor([0.3, 0.2, 0.1]))
    drawn = step.drawn(numbers(2), torch.bfloat16)
    assert drawn.latents.dtype == torch.bfloat16
    assert torch.equal(step.log_probability(drawn.latents), drawn.log_probability)
    unrounded = step.drawn(numbers(2), torch.float32)
    assert not torch.equal(unrounded.log_probability, drawn.log_probability)


def test_steps_of_different_times_do_not_change_each_other() -> None:
    process = FlowProcess(0.7)
    prediction = numbers(1, torch.float32)
    latents = numbers(2, torch.float32)
    whole = process.gaussian(prediction, latents, TIMES, AFTERS)
    for image in range(3):
        rows = slice(image, image + 1)
        alone = process.gaussian(prediction[rows], latents[rows], TIMES[rows], AFTERS[rows])
        assert torch.equal(alone.mean, whole.mean[rows]) and torch.equal(alone.deviation, whole.deviation[rows])


def test_the_grids_begin_with_noise_and_end_at_the_image() -> None:
    assert FlowProcess().grid(4).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    shifted = FlowProcess(shift=3.0).grid(2).tolist()
    assert shifted == pytest.approx([1.0, 3 * 0.5 / (1 + 2 * 0.5), 0.0])
    denoising = DenoisingProcess()
    assert denoising.grid(4).tolist() == [999.0, 749.0, 499.0, 249.0, -1.0]
    assert denoising.signals(torch.tensor([-1.0])).tolist() == [1.0]


def test_a_last_step_of_denoising_is_the_image_that_was_predicted_and_has_no_log_probability() -> None:
    process = DenoisingProcess(1.0)
    images = numbers(1)
    noise = numbers(2)
    last = torch.full_like(LEVELS, -1.0)
    noised = process.noised(images, noise, LEVELS)
    assert torch.allclose(process.straight(noise, noised, LEVELS, last), images, atol=1e-10)
    with pytest.raises(ValueError, match="no noise"):
        process.gaussian(noise, noised, LEVELS, last)


def test_a_flow_that_is_predicted_rightly_arrives_at_the_image() -> None:
    process = FlowProcess()
    images = numbers(1)
    noise = numbers(2)
    noised = process.noised(images, noise, TIMES)
    arrived = process.straight(process.target(images, noise), noised, TIMES, torch.zeros_like(TIMES))
    assert torch.allclose(arrived, images, atol=1e-12)


def test_an_images_noise_depends_on_its_seed_and_step_alone() -> None:
    together = image_noise([5, 6, 7], 2, shape=SHAPE)
    assert torch.equal(image_noise([7], 2, shape=SHAPE)[0], together[2])
    assert not torch.equal(image_noise([7], 3, shape=SHAPE)[0], together[2])
    rounded = image_noise([7], 2, torch.empty(0, dtype=torch.bfloat16), shape=SHAPE)[0]
    assert torch.equal(rounded, together[2].bfloat16())


def test_a_window_moves_towards_the_image_and_stays_there() -> None:
    window = StepWindow(2, interval=3)
    assert [window.at(iteration, 4).start for iteration in (1, 3, 4, 6, 7, 100)] == [0, 0, 1, 1, 2, 2]
    assert StepWindow(2).at(100, 4) == range(2)
    with pytest.raises(ValueError, match="does not fit"):
        StepWindow(5).at(1, 4)
