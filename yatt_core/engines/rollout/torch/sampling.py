"""Draws tokens from given noise. Consumes logits and uniform numbers; produces tokens and their log-probabilities.

The order is vLLM's: stop tokens that come too early are excluded, repeated tokens are penalised, the logits are divided by
the temperature, and then min-p, top-k and top-p each cut what the one before has left.
"""

from __future__ import annotations

import torch

from yatt_core.wire.support import Support

BLOCK = 64
"""Number of adjacent tokens whose mass is added up first: a draw finds the block, then the token within it."""


def penalised(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Returns the logits after the repetition penalty (arXiv 1909.05858).

    logits: [rows, vocabulary] float32.
    seen: [rows, vocabulary] bool, the tokens of the prompt and of the response so far.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def draw(scaled: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token per row by inverse transform, in vocabulary order, and returns its log-probability.

    scaled: [rows, vocabulary], the logits divided by the temperature, and truncated.
    noise: [rows] float64 in [0, 1).

    Returns tokens [rows] int64 and log-probabilities [rows] float32 under softmax(scaled).
    """
    # Row by row: in an exponential over the whole tensor, rounding would depend on a value's position.
    masses = torch.softmax(scaled, dim=-1, dtype=torch.float32)
    blocks = _block_masses(masses)
    cumulative = blocks.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # In float64, noise * total stays below the total, so the first sum above it belongs to a block with mass.
    targets = noise[:, None] * total
    # With logits that are not finite, the search runs past the last block; the log-probability then shows it.
    block = torch.searchsorted(cumulative, targets, right=True).clamp_(max=blocks.shape[1] - 1)
    mass = blocks.gather(1, block)
    tokens = _within(masses, block, (targets - (cumulative.gather(1, block) - mass)) / mass)
    # The log of the sampled mass: a log-softmax would take another pass and differ only in the last bits of a float32.
    return tokens[:, 0], masses.gather(1, tokens)[:, 0].log()


def truncated(scaled: torch.Tensor, top_p: float, top_k: int, min_p: float) -> torch.Tensor:
    """Returns the scaled logits with -inf for tokens that are not sampled.

    min_p cuts tokens that are less likely than this fraction of the likeliest one (arXiv 2407.01082), top_k all but the k
    likeliest and those that equal the last of them, and top_p all beyond the nucleus (arXiv 1904.09751).
    """
    if min_p > 0.0:
        shares = torch.softmax(scaled, dim=-1, dtype=torch.float32)
        scaled = scaled.masked_fill(shares < min_p * shares.amax(dim=-1, keepdim=True), -torch.inf)
    if 0 < top_k < scaled.shape[-1]:
        least = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if top_p < 1.0:
        scaled = _nucleus(torch.log_softmax(scaled, dim=-1, dtype=torch.float32), top_p)
    return scaled


def support_of(scaled: torch.Tensor) -> Support:
    """Returns the tokens that truncation has left in each row of scaled logits; on a GPU, this waits for them.

    scaled: [rows, vocabulary], -inf for tokens that are not sampled.
    """
    kept = scaled > -torch.inf
    rows, tokens = kept.nonzero(as_tuple=True)
    sizes = rows.bincount(minlength=len(scaled))
    return Support(tokens.int().cpu().numpy(), sizes.int().cpu().numpy())


def _block_masses(masses: torch.Tensor) -> torch.Tensor:
    """Returns the mass of each block, the last of which may be short: [rows, blocks] float64."""
    full = masses.shape[1] // BLOCK * BLOCK
    whole = masses[:, :full].reshape(len(masses), full // BLOCK, BLOCK).sum(dim=2)
    return torch.cat([whole, masses[:, full:].sum(dim=1, keepdim=True)], dim=1).double()


def _within(masses: torch.Tensor, block: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Returns the token of a block at which the cumulative mass exceeds `share` of the block's mass, [rows, 1].

    share: rounding may have moved it to 1 or below 0.
    """
    last = masses.shape[1] - 1
    members = block * BLOCK + torch.arange(BLOCK, device=masses.device)
    inside = masses.gather(1, members.clamp(max=last)).masked_fill_(members > last, 0.0)
    cumulative = inside.double().cumsum_(dim=-1)
    targets = share.clamp(0.0, 1.0 - 2.0**-40) * cumulative[:, -1:]
    return (block * BLOCK + torch.searchsorted(cumulative, targets, right=True)).clamp_(max=last)


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each row's likeliest token and its log-probability at temperature 1.

    logits: [rows, vocabulary].
    """
    tokens = logits.argmax(dim=-1, keepdim=True)
    return tokens[:, 0], torch.log_softmax(logits.float(), dim=-1).gather(1, tokens)[:, 0]


def _nucleus(log_probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the fewest likeliest tokens whose mass reaches top_p and renormalises; the rest gets -inf."""
    sorted_log_probs, order = log_probs.sort(dim=-1, descending=True, stable=True)
    probabilities = sorted_log_probs.double().exp_()
    outside = probabilities.cumsum(dim=-1) - probabilities >= top_p
    mask = torch.zeros_like(outside).scatter_(1, order, outside)
    return torch.log_softmax(log_probs.masked_fill(mask, -torch.inf), dim=-1)
