"""GRPO straight from the formulas on a plain transformers model, sequence by sequence: every trainer's reference."""

from __future__ import annotations

from typing import Any

import torch

from yatt_core.experience.batch import ExperienceBatch


def plain_log_probs(model: Any, batch: ExperienceBatch, index: int, temperature: float) -> torch.Tensor:
    """Computes the log-probabilities of one response's tokens."""
    prompt = batch.prompt_tokens[batch.prompt_offsets[index] : batch.prompt_offsets[index + 1]]
    response = batch.response_tokens[batch.response_offsets[index] : batch.response_offsets[index + 1]]
    tokens = torch.tensor([[*prompt.tolist(), *response.tolist()]])
    logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.stack([torch.log_softmax(row, -1)[token] for row, token in zip(logits, response, strict=True)])


def plain_grpo_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    batch: ExperienceBatch,
    temperature: float,
    max_norm: float = 1.0,
    teacher: tuple[Any, float] | None = None,
) -> float:
    """Takes one token-mean GRPO step and returns the gradient norm before clipping.

    teacher: a model and its coefficient.
    """
    rewards = batch.rewards.reshape(-1, 4)
    advantage = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    total = torch.zeros(())
    for index, value in enumerate(torch.tensor(advantage, dtype=torch.float32).reshape(-1)):
        mask = torch.tensor(batch.loss_mask[batch.response_offsets[index] : batch.response_offsets[index + 1]])
        log_probs = plain_log_probs(model, batch, index, temperature)
        if teacher is not None:
            with torch.no_grad():
                value = value - teacher[1] * (log_probs - plain_log_probs(teacher[0], batch, index, temperature))
        ratio = (log_probs - log_probs.detach()).exp()
        total = total - (torch.minimum(ratio * value, ratio.clamp(0.8, 1.2) * value) * mask).sum()
    optimizer.zero_grad()
    (total / int(batch.loss_mask.sum())).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return float(norm)
