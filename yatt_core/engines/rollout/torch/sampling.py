"""Draws tokens by given noise. Consumes logits and uniforms; produces tokens and their log-probabilities."""

from __future__ import annotations

import torch

BLOCK = 64
"""Neighbouring tokens whose mass is added up first: a draw looks for the block, then within it."""


def sample(
    logits: torch.Tensor, noise: torch.Tensor, temperature: float, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row by inverse transform, in the order of the vocabulary, and its log-probability.

    logits: [rows, vocabulary]. noise: [rows] float64 in [0, 1). Returns tokens [rows] int64 and log-probabilities [rows]
    float32 under the distribution drawn from: softmax(logits / temperature), cut to the nucleus where top_p < 1
    (arXiv 1904.09751) and renormalised.
    """
    scaled = logits if temperature == 1.0 else logits.float() / temperature
    if top_p < 1.0:
        scaled = _nucleus(torch.log_softmax(scaled, dim=-1, dtype=torch.float32), top_p)
    # Row by row: an exponential over the whole tensor would round by a number's place in it.
    masses = torch.softmax(scaled, dim=-1, dtype=torch.float32)
    blocks = _block_masses(masses)
    cumulative = blocks.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # In float64 noise * total stays below the total, so the first sum above it belongs to a block that has mass.
    targets = noise[:, None] * total
    # Logits that are not finite would point behind the vocabulary; clamped, they show in the log-probability instead.
    block = torch.searchsorted(cumulative, targets, right=True).clamp_(max=blocks.shape[1] - 1)
    mass = blocks.gather(1, block)
    tokens = _within(masses, block, (targets - (cumulative.gather(1, block) - mass)) / mass)
    # Of the mass it was drawn by: a second pass over the vocabulary would say the same to the last bits of a float32.
    return tokens[:, 0], masses.gather(1, tokens)[:, 0].log()


def _block_masses(masses: torch.Tensor) -> torch.Tensor:
    """Mass of each block, the last of which may be short: [rows, blocks] float64."""
    full = masses.shape[1] // BLOCK * BLOCK
    whole = masses[:, :full].reshape(len(masses), full // BLOCK, BLOCK).sum(dim=2)
    return torch.cat([whole, masses[:, full:].sum(dim=1, keepdim=True)], dim=1).double()


def _within(masses: torch.Tensor, block: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The token of a block below which this share of its mass lies, [rows, 1]. share: rounded, may it reach 1 or fall below 0."""
    last = masses.shape[1] - 1
    members = block * BLOCK + torch.arange(BLOCK, device=masses.device)
    inside = masses.gather(1, members.clamp(max=last)).masked_fill_(members > last, 0.0)
    cumulative = inside.double().cumsum_(dim=-1)
    targets = share.clamp(0.0, 1.0 - 2.0**-40) * cumulative[:, -1:]
    return (block * BLOCK + torch.searchsorted(cumulative, targets, right=True)).clamp_(max=last)


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
