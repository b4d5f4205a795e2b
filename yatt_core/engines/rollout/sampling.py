"""Draws tokens by given noise. Consumes logits and uniforms; produces tokens and their log-probabilities."""

from __future__ import annotations

import torch


def sample(
    logits: torch.Tensor, noise: torch.Tensor, temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row by inverse transform, in the order of the vocabulary, and its log-probability.

    logits: [rows, vocabulary]. noise: [rows] float64 in [0, 1). Returns tokens [rows] int64 and log-probabilities [rows]
    float32 under the distribution drawn from: softmax(logits / temperature), cut to the nucleus where top_p < 1
    (arXiv 1904.09751) and renormalised.
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    if top_p < 1.0:
        log_probs = _nucleus(log_probs, top_p)
    cumulative = log_probs.double().exp_().cumsum_(dim=-1)
    # In float64 noise * total stays below the total, so the first sum above it belongs to a token that has mass.
    targets = noise[:, None] * cumulative[:, -1:]
    # Logits that are not finite would point behind the vocabulary; clamped, they show in the log-probability instead.
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[1] - 1)
    return tokens[:, 0], log_probs.gather(1, tokens)[:, 0]


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row and its log-probability at temperature 1. logits: [rows, vocabulary]."""
    tokens = logits.argmax(dim=-1, keepdim=True)
    return tokens[:, 0], torch.log_softmax(logits.float(), dim=-1).gather(1, tokens)[:, 0]


def _nucleus(log_probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the fewest likeliest tokens whose mass reaches top_p, and renormalises; the rest gets -inf."""
    sorted_log_probs, order = log_probs.sort(dim=-1, descending=True, stable=True)
    probabilities = sorted_log_probs.double().exp_()
    outside = probabilities.cumsum(dim=-1) - probabilities >= top_p
    mask = torch.zeros_like(outside).scatter_(1, order, outside)
    return torch.log_softmax(log_probs.masked_fill(mask, -torch.inf), dim=-1)
