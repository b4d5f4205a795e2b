"""The methods of a spec that are functions of its user: each is found, vouched for by its source in an exact run, and tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from yatt_core.algorithms.advantages.base import RewardBatch
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, verify_source
from yatt_core.spec.run import RunSpec

TRIED_PROMPTS = 2
TRIED_TOKENS = 4
"""Prompts of a trial, and tokens of its longest response."""


def verify_methods(spec: RunSpec, run_folder: Path | None = None) -> None:
    """Raises `ConfigurationError` for a function that is missing, or, in an exact run, whose source has changed.

    run_folder: folder of the run, which has its own copies of files: this process executes these from now on.
    """
    loss = spec.algorithm.loss
    advantage = spec.algorithm.advantage
    if isinstance(loss, CustomLoss):
        verify_source(loss, LOSSES, spec.is_exact, run_folder)
    if isinstance(advantage, CustomAdvantage):
        verify_source(advantage, ADVANTAGES, spec.is_exact, run_folder)


def try_methods(spec: RunSpec) -> None:
    """Calls each function once, with random responses. Raises `ConfigurationError` for an exception or a wrong result."""
    noise = np.random.default_rng(spec.seed)
    sizes = np.full(TRIED_PROMPTS, spec.rollout.samples_per_prompt)
    lengths = noise.integers(1, TRIED_TOKENS + 1, int(sizes.sum()))
    if isinstance(advantage := spec.algorithm.advantage, CustomAdvantage):
        rewards = noise.random((len(spec.rewards.parts), len(lengths)))
        parts = {part.name: (part.weight, values) for part, values in zip(spec.rewards.parts, rewards, strict=True)}
        total = np.sum([weight * values for weight, values in parts.values()], axis=0)
        advantage.advantages(RewardBatch(total, sizes, lengths, spec.algorithm.epsilon, parts=parts))
    if isinstance(loss := spec.algorithm.loss, CustomLoss):
        _try_loss(loss, lengths, noise)


def _try_loss(
    loss: CustomLoss, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], noise: np.random.Generator
) -> None:
    import torch

    from yatt_core.algorithms.tokens import PolicyTokens, Responses

    old, step, advantages = (torch.from_numpy(noise.normal(size=int(lengths.sum()))).float() for _ in range(3))
    old = -old.abs()
    log_probs = (old + 0.1 * step).requires_grad_()
    log_ratio = log_probs - old
    rows = np.repeat(np.arange(len(lengths)), lengths)
    columns = np.concatenate([np.arange(length) for length in lengths])
    responses = Responses(torch.from_numpy(rows), torch.from_numpy(columns), len(lengths), int(lengths.max()))
    loss.token_losses(
        PolicyTokens(
            log_probs=log_probs,
            old=old,
            sampler=old,
            advantages=advantages,
            log_ratio=log_ratio,
            ratio=log_ratio.exp(),
            responses=responses if loss.responses else None,
        )
    )
