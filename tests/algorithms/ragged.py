"""Random ragged steps of an update, cut into ranks and micro-batches, and their loss from the product, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from yatt_core.engines.train.steps.learner import responses_of
from yatt_core.engines.train.steps.objective import LossSums, TokenInputs, objective
from yatt_core.spec.sections.algorithm import AlgorithmSpec

Rows = list[np.ndarray]


@dataclass(frozen=True)
class Step:
    """Responses of a step, one array of tokens each; `parts` are the micro-batches of all ranks.

    weights, advantages: one number per response.
    """

    new: Rows
    old: Rows
    sampler: Rows
    reference: Rows
    weights: np.ndarray
    advantages: Rows
    parts: list[np.ndarray]


@st.composite
def steps(draw: st.DrawFn, token_advantages: bool = False) -> Step:
    """Draws responses of 0 to 5 tokens (0: all of its tokens are masked) with small to huge ratios."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    spread = draw(st.sampled_from([1e-4, 0.02, 0.3, 30.0]))
    gap = draw(st.sampled_from([0.05, 0.8, 12.0]))
    old = [noise.uniform(-3.0, -0.1, length) for length in lengths]
    near = [-np.abs(row + noise.normal(0, spread, len(row))) for row in old]
    sampler = [-np.abs(row + noise.normal(0, gap, len(row))) for row in old]
    reference = [-np.abs(row + noise.normal(0, 0.4, len(row))) for row in old]
    by_response = noise.choice([-1.3, -0.4, 0.0, 0.7, 1.1], len(lengths))
    advantages = [np.full(length, value) for length, value in zip(lengths, by_response, strict=True)]
    if token_advantages:
        advantages = [noise.normal(0, 1, length) for length in lengths]
    cuts = sorted(draw(st.lists(st.integers(0, len(lengths)), max_size=4)))
    parts = np.split(noise.permutation(len(lengths)), cuts)
    return Step(near, old, sampler, reference, noise.uniform(0.05, 0.4, len(lengths)), advantages, parts)


def found(spec: AlgorithmSpec, step: Step, with_old: bool = True) -> tuple[float, Rows, LossSums]:
    """Returns the product's loss of all micro-batches, its gradient by each log-probability, and the sums."""
    total = 0.0
    gradient = [np.zeros(len(row)) for row in step.new]
    sums = LossSums()
    for part in step.parts:
        rows = np.repeat(part, [len(step.new[i]) for i in part])

        def flat(column: Rows) -> torch.Tensor:
            return torch.tensor(np.concatenate([np.empty(0), *(column[i] for i in part)]))  # noqa: B023 - called at once

        log_probs = flat(step.new).requires_grad_()
        inputs = TokenInputs(
            advantages=flat(step.advantages),
            weights=torch.tensor(step.weights[rows]),
            mean_weights=torch.zeros(len(rows)),
            sampler=flat(step.sampler),
            old=flat(step.old) if with_old else None,
            reference=flat(step.reference),
            responses=responses_of(rows, torch.device("cpu")) if spec.whole_responses else None,
        )
        loss, own = objective(spec, log_probs, torch.zeros(len(rows)), inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        assert log_probs.grad is not None
        for i in part:
            gradient[i] = log_probs.grad.numpy()[rows == i]
        total += loss.item()
        sums.merge(own)
    return total, gradient, sums


Reference = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""(log-probabilities of a response, the same where gradients stop, the response) -> losses of its tokens."""


def expected(step: Step, losses: Reference) -> tuple[float, Rows, Rows]:
    """Returns the formula's loss, its central differences, and which of them are no kinks."""

    def loss(i: int, new: np.ndarray) -> float:
        return float(step.weights[i] * losses(new, step.new[i], i).sum())

    total = 0.0
    slopes = []
    smooth = []
    for i, row in enumerate(step.new):
        here = loss(i, row)
        size = 1e-6
        total += here
        ups = np.array([loss(i, row + size * one) - here for one in np.eye(len(row))])
        downs = np.array([here - loss(i, row - size * one) for one in np.eye(len(row))])
        slopes.append((ups + downs) / (2 * size))
        smooth.append(np.abs(ups - downs) <= 1e-4 * (np.abs(ups) + np.abs(downs)) + 1e-10)
    return total, slopes, smooth


def assert_parity(spec: AlgorithmSpec, step: Step, losses: Reference, with_old: bool = True) -> LossSums:
    """Asserts that loss and gradients are the formula's, however the step is cut; returns the sums."""
    total, gradient, sums = found(spec, step, with_old)
    wanted, slopes, smooth = expected(step, losses)
    scale = max(1.0, *(float(np.abs(row).max(initial=0.0)) for row in slopes))
    # Differences of a large loss lose digits: those of its smallest bits, divided by the size of the step.
    largest = max(abs(float(step.weights[i] * losses(row, row, i).sum())) for i, row in enumerate(step.new))
    np.testing.assert_allclose(total, wanted, rtol=1e-9, atol=1e-11)
    for ours, theirs, ok in zip(gradient, slopes, smooth, strict=True):
        np.testing.assert_allclose(ours[ok], theirs[ok], rtol=2e-4, atol=1e-6 * scale + 1e-8 * largest)
    return sums


def algorithm(**settings: Any) -> AlgorithmSpec:
    return AlgorithmSpec.model_validate(settings)
