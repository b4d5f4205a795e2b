"""Checks that a model computes the same with torch's fused attention as with transformers' reference implementation.

Fused attention may ignore what it does not support without a word; it refuses Gemma-2's soft-capping of attention logits.
Consumes a loaded module; raises if the two disagree on a few tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from yatt_core.bfloat16.choice import products_of
from yatt_core.errors import ConfigurationError

KNOWN_TYPES = frozenset({"llama", "qwen2", "qwen3"})
"""Types of text models whose log-probabilities tests compare with the reference; checking them again would delay every start."""
TOKENS = 24
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest mean difference of outputs, in nats, that round-off explains."""


def is_known(model: Any) -> bool:
    """Returns True for a type of model that needs no check."""
    return model.config.get_text_config().model_type in KNOWN_TYPES


@torch.no_grad()
def check_attention(model: Any, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Compares a few tokens' log-probabilities, or a classifier's output, with the reference's.

    model: a transformers model of a type that may be unknown, with fused attention in use.
    dtype: the precision in which it computes; None for that of its weights.

    Raises `ConfigurationError` if they differ, or if fused attention refuses the model.
    """
    if is_known(model):
        return
    dtype = dtype or model.dtype
    used = model.config._attn_implementation
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = (torch.arange(TOKENS) * 7919 % vocabulary)[None, :]
    multiplying = products_of(dtype, next(model.parameters()).device).in_modules()
    try:
        with multiplying:
            found = _measured(model, tokens)
    except ValueError as error:
        raise ConfigurationError(
            f"{folder}: fused attention ({used}) refuses {model.config.model_type}{_suspect(model.config)}: {error}. This "
            "model cannot be used"
        ) from error
    model.set_attn_implementation("eager")
    try:
        with multiplying:
            wanted = _measured(model, tokens)
    finally:
        model.set_attn_implementation(used)
    gap, tolerance = float((found - wanted).abs().mean()), TOLERANCES[dtype]
    if not gap <= tolerance:
        raise ConfigurationError(
            f"{folder}: with fused attention ({used}), outputs of {model.config.model_type} are off by {gap:.3g} on "
            f"average{_suspect(model.config)}; expected at most {tolerance:g}. This model cannot be used"
        )


def _measured(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the log-probabilities of the tokens at their own places, or a classifier's logits."""
    logits: torch.Tensor = model(input_ids=tokens).logits.float()
    if logits.dim() == tokens.dim():
        return logits
    return torch.log_softmax(logits, -1).gather(-1, tokens[..., None])


def _suspect(config: Any) -> str:
    cap = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return "" if cap is None else f" (it ignores attn_logit_softcapping: {cap:g})"
