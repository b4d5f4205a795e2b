"""What a sampler should have reported: log-probabilities of transformers; and its answers in a comparable form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.engines.rollout.cases import MAX_NEW, prompts_of, request_of, rows_of
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
    samples = request.seeds.shape[1]
    gap = 0.0
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


LONG = [200, 37, 130, 9]
"""Prompt lengths of several cache blocks, so that the prefix cache has hits."""
SMALL = 1e-4
LARGE = 1e-2
"""What rounding may change in a log-probability, and less than what other weights change."""


def gap_after_update(case, temperature: float = 1.0, version: int = 1) -> float:
    """Answers long prompts before and after an update, and returns the gap to the model of the new weights."""
    options = {"samples": 2, "max_new_tokens": MAX_NEW, "temperature": temperature}
    case.engine.generate(request_of(prompts_of(LONG), **options))
    case.engine.update_weights(case.weights(version), version)
    request = request_of(prompts_of(LONG), weight_version=version, **options)
    return largest_gap(module_with(case.folder, case.weights(version)), request, case.engine.generate(request))


def answers_by_seed(case, prompts, seeds):
    """Generates one batch: (prompt, seed) -> tokens, log-probability bits and finish reason."""
    request = request_of(prompts, seeds=np.array([seeds] * len(prompts), np.uint64), max_new_tokens=MAX_NEW)
    keys = [(place, seed) for place in range(len(prompts)) for seed in seeds]
    return dict(zip(keys, rows_of(case.engine.generate(request)), strict=True))
