"""The engine on vLLM: its log-probabilities match the model after any update, and it serves several threads at once."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, prompts_of, request_of, rows_of
from tests.engines.rollout.test_sampling import processors
from tests.engines.rollout.vllm.reference import (
    LARGE,
    SMALL,
    gap_after_update,
    largest_gap,
    module_with,
)
from tests.needs import NEEDS_VLLM
from yatt_core.engines.rollout.torch.sampling import support_of, truncated
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, NumericError

pytestmark = [NEEDS_VLLM, pytest.mark.verify]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probabilities_match_the_model_after_an_update(vllm_case, temperature):
    assert gap_after_update(vllm_case, temperature) < SMALL


def test_without_the_workaround_the_prefix_cache_survives_an_update(vllm_case, monkeypatch):
    """Will fail as soon as a weight update in vLLM empties the cache by itself; prompts then need no salt."""
    monkeypatch.setattr(vllm_case.engine, "_salt", lambda: "the same for all")
    assert gap_after_update(vllm_case) > LARGE


def test_likeliest_tokens_have_their_log_probability_at_temperature_one(vllm_case):
    request = request_of(prompts_of([12, 50]), greedy=True, max_new_tokens=MAX_NEW)
    result = vllm_case.engine.generate(request)
    assert largest_gap(module_with(vllm_case.folder, vllm_case.weights(0)), request, result) < SMALL


def test_top_p_renormalises(vllm_case):
    whole = request_of(prompts_of([12, 50]), samples=8, max_new_tokens=MAX_NEW)
    cut = request_of(prompts_of([12, 50]), samples=8, max_new_tokens=MAX_NEW, top_p=0.5)
    module = module_with(vllm_case.folder, vllm_case.weights(0))
    assert largest_gap(module, whole, vllm_case.engine.generate(whole)) < SMALL
    assert largest_gap(module, cut, vllm_case.engine.generate(cut)) > LARGE


def test_shaped_sampling_matches_hugging_faces_processors(vllm_case):
    """The same settings mean the same distribution in both engines: see the test of the torch engine."""
    prompts = prompts_of([1, 9, 31])
    stops = tuple(range(1, 40))
    least = 5
    request = request_of(
        prompts, samples=4, max_new_tokens=MAX_NEW, stop_tokens=stops, temperature=0.8, top_p=0.9, top_k=20, min_p=0.02,
        repetition_penalty=1.4, min_new_tokens=least,
    )  # fmt: skip
    result = vllm_case.engine.generate(request)
    assert result.lengths.min() > least and (result.finish == 0).any()
    module = module_with(vllm_case.folder, vllm_case.weights(0))
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        prompt = prompts[row // 4]
        drawn = np.frombuffer(tokens, np.int32).astype(np.int64)
        whole = torch.from_numpy(np.concatenate([prompt, drawn]).astype(np.int64))[None]
        with torch.no_grad():
            logits = module(input_ids=whole).logits[0].float()
        shape = processors(len(prompt), stops, 0.8, 0.9, 20, 0.02, 1.4, least)
        for step, given in enumerate(np.frombuffer(log_probs, np.float32)):
            end = len(prompt) + step
            expected = shape(whole[:, :end], logits[end - 1 : end].clone()).log_softmax(-1)
            assert abs(float(expected[0, drawn[step]]) - float(given)) < SMALL


@pytest.mark.parametrize("fault", ["name", "missing", "shape", "dtype"])
def test_wrong_weights_leave_the_engine_without_any_until_the_next_update(vllm_case, fault):
    request = request_of(prompts_of([5, 19]), samples=4)
    before = rows_of(vllm_case.engine.generate(request))
    weights = dict(vllm_case.weights(0))
    name = next(iter(weights))
    if fault == "name":
        weights["other"] = weights[name]
    elif fault == "missing":
        del weights[name]
    elif fault == "shape":
        weights[name] = weights[name][:1]
    else:
        weights[name] = weights[name].astype(np.int32)
    with pytest.raises(InfrastructureError, match="weights"):
        vllm_case.engine.update_weights(weights, 1)
    assert vllm_case.engine.version == -1
    with pytest.raises(InfrastructureError, match=r"\bsync\b"):
        vllm_case.engine.generate(request)
    vllm_case.engine.update_weights(vllm_case.weights(0), 0)
    assert rows_of(vllm_case.engine.generate(request)) == before


def test_a_tied_tensor_may_come_under_its_other_name(vllm_case):
    weights = dict(vllm_case.weights(1))
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    vllm_case.engine.update_weights(weights, 1)
    assert vllm_case.engine.version == 1


def test_several_threads_get_what_each_would_get_alone(vllm_case):
    requests = [request_of(prompts_of([4 + n, 30], seed=n), samples=4, max_new_tokens=MAX_NEW) for n in range(5)]
    alone = [rows_of(vllm_case.engine.generate(request)) for request in requests]
    found: dict[int, list] = {}

    def ask(number: int) -> None:
        found[number] = rows_of(vllm_case.engine.generate(requests[number]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(5)] == alone


def test_an_abandoned_stream_is_removed_from_the_engine(vllm_case):
    stream = vllm_case.engine.stream(request_of(prompts_of([5, 9]), samples=4, stop_tokens=(), max_new_tokens=MAX_NEW))
    assert next(stream) is None
    stream.close()
    vllm_case.engine.take_work()
    vllm_case.engine.generate(request_of(prompts_of([5]), stop_tokens=()))
    work = vllm_case.engine.take_work()
    assert work.sequence_steps == work.steps > 0, "nothing else was in the engine"


def test_non_finite_logits_are_reported(vllm_case):
    weights = {name: tensor * np.float32("nan") for name, tensor in vllm_case.weights(0).items()}
    vllm_case.engine.update_weights(weights, 1)
    with pytest.raises(NumericError, match="not finite"):
        vllm_case.engine.generate(request_of(prompts_of([5]), weight_version=1))
    vllm_case.engine.update_weights(vllm_case.weights(0), 0)
    prompts = prompts_of([1 + number % 9 for number in range(40)])
    answers = vllm_case.engine.generate(request_of(prompts, stop_tokens=(), max_new_tokens=MAX_NEW))
    assert np.isfinite(answers.log_probs).all(), "none of them is left in the cache"


def test_requests_beyond_the_limits_are_refused(vllm_case):
    with pytest.raises(ConfigurationError, match="25 new tokens"):
        vllm_case.engine.generate(request_of(prompts_of([5]), max_new_tokens=25))
    with pytest.raises(DataError, match="prompt 1 of the decode batch has 321 tokens"):
        vllm_case.engine.generate(request_of(prompts_of([5, 321])))
    with pytest.raises(DataError, match="the model takes text only"):
        vllm_case.engine.generate(request_of(prompts_of([5]), media=[("sha256:0",)]))


def test_no_file_is_left_in_the_temporary_folder(vllm_case):
    """A killed engine could not remove the file through which vLLM would let its processes meet."""
    assert not list(Path(tempfile.gettempdir()).glob("vllm_dist_*"))


def test_a_request_after_the_end_of_the_process_says_what_happened(make_vllm_case):
    case = make_vllm_case()
    stream = case.engine.stream(request_of(prompts_of([5]), stop_tokens=(), max_new_tokens=MAX_NEW))
    assert next(stream) is None
    os.kill(case.engine._core.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        next(stream)
    assert case.engine.is_lost
    with pytest.raises(InfrastructureError, match="SIGKILL"):
        case.engine.update_weights(case.weights(0), 0)


def test_it_records_the_support_that_the_torch_engine_records(vllm_case):
    """Both draw from the same model; each support is compared with the one that the torch engine's sampling leaves."""
    prompts = prompts_of([1, 9, 31])
    cut = {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "min_new_tokens": 5}
    request = request_of(prompts, samples=4, max_new_tokens=MAX_NEW, temperature=0.8, record_support=True, **cut)
    result = vllm_case.engine.generate(request)
    module = module_with(vllm_case.folder, vllm_case.weights(0))
    checked = 0
    for row, (tokens, _, _) in enumerate(rows_of(result)):
        prompt = prompts[row // 4]
        drawn = np.frombuffer(tokens, np.int32).astype(np.int64)
        whole = torch.from_numpy(np.concatenate([prompt, drawn]).astype(np.int64))[None]
        with torch.no_grad():
            logits = module(input_ids=whole).logits[0, len(prompt) - 1 : -1].float()
        logits[: cut["min_new_tokens"], request.stop_tokens] = -torch.inf
        expected = support_of(truncated(logits / 0.8, cut["top_p"], cut["top_k"], cut["min_p"]))
        found = result.support.at(slice(checked, checked + len(drawn)))
        assert found.sizes.tolist() == expected.sizes.tolist() and found.tokens.tolist() == expected.tokens.tolist()
        checked += len(drawn)
    assert checked == len(result.tokens) and result.support.contains(result.tokens).all()
    assert 1 < result.support_sizes.mean() < cut["top_k"]
    plain = vllm_case.engine.generate(request_of(prompts, samples=4, max_new_tokens=MAX_NEW, temperature=0.8, **cut))
    assert plain.support is None and rows_of(plain) == rows_of(result)
