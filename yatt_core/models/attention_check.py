"""Checks that a model computes the same with torch's fused attention as with transformers' reference implementation.

Fused attention silently ignores what it does not support, such as Gemma-2's soft-capping of attention logits.
Consumes a loaded module; raises if the two disagree on a few tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from yatt_core.errors import ConfigurationError

KNOWN_TYPES = frozenset({"llama", "llava", "qwen2", "qwen3"})
"""Model types whose log-probabilities tests compare with the reference; checking them again would delay every start."""
TOKENS = 24
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest difference of log-probabilities, in nats, that round-off explains."""


@torch.no_grad()
def check_attention(model: Any, folder: Path) -> None:
    """Compares a few tokens' log-probabilities with the reference's. Raises `ConfigurationError` if they differ.

    model: a transformers model of a type that may be unknown, with fused attention in use.
    """
    if model.config.model_type in KNOWN_TYPES:
        return
    used = model.config._attn_implementation
    vocabulary = model.get_input_embeddings().num_embeddings
    tokens = (torch.arange(TOKENS) * 7919 % vocabulary)[None, :]
    found = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
    model.set_attn_implementation("eager")
    try:
        wanted = torch.log_softmax(model(input_ids=tokens).logits.float(), -1)
    finally:
        model.set_attn_implementation(used)
    gap = float((found - wanted).gather(-1, tokens[..., None]).abs().max())
    if not gap <= TOLERANCES[model.dtype]:
        raise ConfigurationError(
            f"{folder}: with fused attention ({used}), log-probabilities of {model.config.model_type} are off by up to "
            f"{gap:.3g}{_suspect(model.config)}; expected at most {TOLERANCES[model.dtype]:g}. This model cannot be used"
        )


def _suspect(config: Any) -> str:
    cap = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return "" if cap is None else f" (it ignores attn_logit_softcapping: {cap:g})"
