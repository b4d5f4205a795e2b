"""New weights while responses are in flight: the policy decides how they continue; each token records its version."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from tests.engines.rollout.cases import MAX_NEW, prompts_of, request_of
from tests.engines.rollout.vllm.reference import module_with, token_log_probs
from tests.needs import NEEDS_VLLM
from yatt_core.engines.rollout.served import engine as module
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.pieces import join_pieces

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
SMALL = 1e-4
LARGE = 1e-2
STEPS_BEFORE = 9


@pytest.fixture(scope="module", params=["keep_cache", "recompute"])
def policy_case(request, make_vllm_case):
    """Returns the policy's name and an engine that follows it."""
    return request.param, make_vllm_case(in_flight_update=request.param, max_num_seqs=8)


def over_old_cache(old: torch.nn.Module, new: torch.nn.Module, prompt: list[int], tokens: list[int], made: int):
    """Computes the new weights' log-probabilities after the first `made` tokens, over the old weights' cache."""
    whole = [*prompt, *tokens]
    cut = len(prompt) + made - 1
    cache = DynamicCache(config=old.config)
    with torch.no_grad():
        old(input_ids=torch.tensor([whole[:cut]]), cache=cache, use_cache=True)
        logits = new(input_ids=torch.tensor([whole[cut:-1]]), cache=cache, use_cache=True).logits[0]
    chosen = torch.tensor(whole[cut + 1 :])[:, None]
    return torch.log_softmax(logits.float(), dim=-1).gather(1, chosen)[:, 0].numpy()


def test_responses_in_flight_continue_as_the_policy_says(policy_case, monkeypatch):
    monkeypatch.setattr(module, "MOST_STEPS", 1)  # so that each look at the stream is a step
    policy, case = policy_case
    case.engine.update_weights(case.weights(0), 0)
    request = request_of(prompts_of([40, 7]), samples=2, stop_tokens=(), max_new_tokens=MAX_NEW)
    stream = case.engine.stream(request)
    for _ in range(STEPS_BEFORE):
        assert next(stream) is None
    case.engine.update_weights(case.weights(1), 1)
    result = join_pieces([piece for piece in stream if piece is not None]).result
    old, new = (module_with(case.folder, case.weights(version)) for version in (0, 1))
    for row in range(4):
        span = slice(row * MAX_NEW, (row + 1) * MAX_NEW)
        tokens = result.tokens[span]
        log_probs = result.log_probs[span]
        versions = result.token_versions[span]
        assert versions.tolist() == [0] * STEPS_BEFORE + [1] * (MAX_NEW - STEPS_BEFORE)
        prompt = request.prompts[row // 2].tolist()
        made = tokens.tolist()
        before = token_log_probs(old, prompt, made[:STEPS_BEFORE], 1.0)
        assert np.abs(log_probs[:STEPS_BEFORE] - before).max() < SMALL
        kept = over_old_cache(old, new, prompt, made, STEPS_BEFORE)
        anew = token_log_probs(new, prompt, made, 1.0)[STEPS_BEFORE:]
        right, wrong = (kept, anew) if policy == "keep_cache" else (anew, kept)
        assert np.abs(log_probs[STEPS_BEFORE:] - right).max() < SMALL
        assert np.abs(log_probs[STEPS_BEFORE:] - wrong).max() > LARGE


def test_requests_after_the_update_see_nothing_of_the_old_weights(policy_case):
    _, case = policy_case
    case.engine.update_weights(case.weights(0), 0)
    prompts = prompts_of([130, 40])
    stream = case.engine.stream(request_of(prompts, stop_tokens=(), max_new_tokens=MAX_NEW))
    next(stream)
    case.engine.update_weights(case.weights(1), 1)
    result = case.engine.generate(request_of(prompts, weight_version=1, stop_tokens=(), max_new_tokens=5))
    assert result.versions is None
    new = module_with(case.folder, case.weights(1))
    for row, prompt in enumerate(prompts):
        span = slice(5 * row, 5 * row + 5)
        said = token_log_probs(new, prompt.tolist(), result.tokens[span].tolist(), 1.0)
        assert np.abs(result.log_probs[span] - said).max() < SMALL
    stream.close()


def test_a_failed_update_ends_responses_in_flight(policy_case):
    _, case = policy_case
    case.engine.update_weights(case.weights(0), 0)
    stream = case.engine.stream(request_of(prompts_of([40]), stop_tokens=(), max_new_tokens=MAX_NEW))
    next(stream)
    with pytest.raises(InfrastructureError, match=r"\d+ tensors"):
        case.engine.update_weights({}, 1)
    with pytest.raises(InfrastructureError, match="failed update"):
        next(stream)
    case.engine.update_weights(case.weights(0), 0)
    case.engine.generate(request_of(prompts_of([40]), max_new_tokens=2))
