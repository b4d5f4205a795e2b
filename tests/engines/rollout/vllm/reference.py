"""Reference log-probabilities from transformers, which a sampler should have reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.engines.rollout.cases import rows_of
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.engines import Tensors
from yatt_core.protocols.generation import GenerateRequest, GenerateResult


def module_with(folder: Path, weights: Tensors) -> torch.nn.Module:
    """Loads the folder's model and replaces its weights."""
    module = load_causal_lm(str(folder), "float32").requires_grad_(False)
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()}, strict=False)
    return module


def token_log_probs(module: torch.nn.Module, prompt: Sequence[int], tokens: Sequence[int], temperature: float):
    """Returns each token's log-probability given the prompt and the tokens before it, [length]."""
    whole = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = module(input_ids=whole).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()


def largest_gap(module: torch.nn.Module, request: GenerateRequest, result: GenerateResult) -> float:
    """Returns the largest difference between any token's log-probability and the module's."""
    samples, gap = request.seeds.shape[1], 0.0
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        given = np.frombuffer(log_probs, np.float32)
        said = token_log_probs(
            module,
            request.prompts[row // samples].tolist(),
            np.frombuffer(tokens, np.int32).tolist(),
            request.temperature,
        )
        gap = max(gap, float(np.abs(given - said).max()))
    return gap
