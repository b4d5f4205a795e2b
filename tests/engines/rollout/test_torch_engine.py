"""The torch engine beyond the contract: agreement with transformers, its batches, its refusals."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.held_bytes import held_bytes
from tests.engines.rollout.cases import (
    MAX_NEW,
    MAX_PROMPT,
    STOP,
    VOCABULARY,
    build_case,
    prompts_of,
    request_of,
    result_digest,
    rows_of,
    torch_case,
)
from tests.engines.rollout.test_sampling import chi_square, processors
from tests.matrix import in_verify
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.engines.rollout.torch.sizes import padded_length
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.pieces import join_pieces


@pytest.fixture(scope="session")
def plain_model(model_folder):
    return load_causal_lm(str(model_folder), "float32")


@pytest.fixture
def forward_rows(plain_model):
    """Records the rows and positions of every pass through the plain model while a test runs."""
    shapes = []
    handle = plain_model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    handle.remove()


def build_experts(folder):
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    MixtralForCausalLM(MixtralConfig(vocab_size=40, num_hidden_layers=1, num_local_experts=2, **sizes)).save_pretrained(
        folder
    )
    return folder


def plain_log_probs(model, prompt, tokens, temperature=1.0):
    """Computes the log-probabilities after the prompt with transformers, without a cache: [tokens, vocabulary]."""
    ids = torch.from_numpy(np.concatenate([prompt, tokens]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double() / temperature, -1).numpy()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"greedy": True, "temperature": 0.7}])
@pytest.mark.parametrize("folder", ["model_folder", "odd_model_folder"])
def test_log_probs_match_a_plain_forward(folder, options, request):
    path = request.getfixturevalue(folder)
    engine = build_case("torch", path).engine
    model = load_causal_lm(str(path), "float32")
    prompts = prompts_of([1, 2, 7, 8, 9, 31, 64, 100, 300])
    result = engine.generate(request_of(prompts, samples=2, max_new_tokens=MAX_NEW, **options))
    temperature = 1.0 if options.get("greedy") else options.get("temperature", 1.0)
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        drawn = np.frombuffer(tokens, np.int32)
        expected = plain_log_probs(model, prompts[row // 2], drawn, temperature)
        gaps = expected[np.arange(len(drawn)), drawn] - np.frombuffer(log_probs, np.float32)
        assert np.abs(gaps).max() < 2e-5
        if options.get("greedy"):
            assert (expected.argmax(-1) == drawn).all()


def test_a_model_of_odd_sizes_is_batch_invariant_too(odd_model_folder):
    """At widths 90 and 117 rows end within a vector, so the end of each tensor goes through scalar code."""
    engine = build_case("torch", odd_model_folder).engine
    lengths = np.random.default_rng(3).integers(1, 60, 64)
    prompts = prompts_of(lengths)
    seeds = np.arange(64, dtype=np.uint64)[:, None]
    together = rows_of(engine.generate(request_of(prompts, seeds=seeds, max_new_tokens=MAX_NEW)))
    for size in (1, 2, 3, 5, 13):
        for start in range(0, 63 - size, 9):
            part = slice(start, start + size)
            request = request_of(prompts[part], seeds=seeds[part], max_new_tokens=MAX_NEW)
            assert rows_of(engine.generate(request)) == together[part]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.6)])
def test_sampled_frequencies_match_the_model(torch_engine, plain_model, temperature, top_p):
    prompts = prompts_of([5, 12])
    samples = 3000
    request = request_of(
        prompts, samples=samples, max_new_tokens=1, stop_tokens=(), temperature=temperature, top_p=top_p
    )
    result = torch_engine.engine.generate(request)
    for row, prompt in enumerate(prompts):
        part = slice(row * samples, (row + 1) * samples)
        shares = np.exp(plain_log_probs(plain_model, prompt, [0], temperature)[0])
        order = np.argsort(-shares)
        outside = order[np.cumsum(shares[order]) - shares[order] >= top_p]
        assert (len(outside) > 5) == (top_p < 1)
        shares[outside] = 0
        shares /= shares.sum()
        assert abs(chi_square(np.bincount(result.tokens[part], minlength=VOCABULARY), shares)) < 5
        assert np.abs(np.log(shares[result.tokens[part]]) - result.log_probs[part]).max() < 2e-5


def test_a_prompt_is_prefilled_once_and_finished_rows_leave(plain_model, forward_rows):
    stops = (1, 2, 3, 4)
    request = request_of(prompts_of([20, 20, 5]), samples=16, stop_tokens=stops, max_new_tokens=MAX_NEW)
    result = decode(ModuleRunner(plain_model), request)
    prefills = [s for s in forward_rows if s[1] > 1]
    steps = [s[0] for s in forward_rows if s[1] == 1]
    assert sorted(prefills) == [(1, padded_length(5)), (2, padded_length(20))]
    assert steps == [max(int((result.lengths > step).sum()) + 1, 4) for step in range(1, len(steps) + 1)]
    assert steps[0] > 3 * steps[-1]


def test_decoding_ends_with_the_last_response(plain_model, forward_rows):
    stops = tuple(range(1, VOCABULARY))
    result = decode(
        ModuleRunner(plain_model), request_of(prompts_of([20]), samples=8, stop_tokens=stops, max_new_tokens=MAX_NEW)
    )
    assert len(forward_rows) <= 1 + result.lengths.max()
    assert result.lengths.max() < 5


@pytest.mark.parametrize("kind", [ModuleRunner, DenseRunner])
def test_the_cache_is_allocated_once(plain_model, kind):
    runner = kind(plain_model)
    request = request_of(prompts_of([60, 9]), samples=8)
    first = rows_of(decode(runner, request))
    held = held_bytes(runner)
    decode(runner, request_of(prompts_of([100]), samples=4, max_new_tokens=4))
    again = rows_of(decode(runner, request))
    assert held_bytes(runner) == held > 0
    assert first == again


def test_decoding_leaves_a_training_model_unchanged(model_folder, torch_engine):
    model = load_causal_lm(str(model_folder), "float32").train()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    request = request_of(prompts_of([5, 30]), samples=4)
    assert rows_of(decode(open_runner(model), request)) == rows_of(torch_engine.engine.generate(request))
    evaluated = load_causal_lm(str(model_folder), "float32")
    assert rows_of(decode(ModuleRunner(model), request)) == rows_of(decode(ModuleRunner(evaluated), request))
    assert model.training and all(layer.self_attn.training for layer in model.model.layers)
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_bfloat16_is_close_but_promises_no_invariance(model_folder, torch_engine):
    narrow = torch_case(model_folder, "bfloat16")
    assert narrow.engine.capabilities["batch_invariant"] is False
    narrow.engine.update_weights(narrow.weights(0), 0)
    request = request_of(prompts_of([5, 30, 100]), samples=1, max_new_tokens=1, greedy=True)
    result = narrow.engine.generate(request)
    exact = torch_engine.engine.generate(request)
    assert np.abs(result.log_probs - exact.log_probs).max() < 0.3
    assert (result.log_probs != exact.log_probs).any()


@pytest.mark.parametrize("name", ["torch", *in_verify("torch-general", "torch-waiting")])
def test_bfloat16_repeats_a_planned_batch_whatever_it_decoded_before(name, model_folder):
    """In this process and in a fresh one: an exact run decodes a batch again as it was."""
    case = build_case(f"{name}/bfloat16", model_folder)
    request = request_of(prompts_of([3, 9, 20, 70]), samples=4)
    expected = result_digest(case.engine.generate(request))
    for lengths, samples in (([200, 300], 1), ([1], 7), (list(range(1, 60)), 2)):
        case.engine.generate(request_of(prompts_of(lengths), samples=samples))
        assert result_digest(case.engine.generate(request)) == expected
    case.engine.update_weights(case.weights(1), 0)
    assert result_digest(case.engine.generate(request)) != expected
    case.engine.update_weights(case.weights(0), 0)
    assert result_digest(case.engine.generate(request)) == expected
    command = [sys.executable, "-m", "tests.engines.rollout.fresh_process", f"{name}/bfloat16", str(model_folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout == expected


def test_prompts_and_answers_beyond_the_limits_are_refused(torch_engine):
    with pytest.raises(DataError, match=rf"prompt 1 .* {MAX_PROMPT + 1} tokens.*{MAX_PROMPT}"):
        torch_engine.engine.generate(request_of(prompts_of([5, MAX_PROMPT + 1])))
    with pytest.raises(ConfigurationError, match=f"{MAX_NEW + 1} new tokens"):
        torch_engine.engine.generate(request_of(prompts_of([5]), max_new_tokens=MAX_NEW + 1))


def test_positions_that_the_model_lacks_are_refused(plain_model):
    with pytest.raises(
        ConfigurationError, match=r"\b520 tokens.*\b512; .*data\.max_prompt_tokens or rollout\.max_new_tokens"
    ):
        decode(open_runner(plain_model), request_of(prompts_of([500]), max_new_tokens=20))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        (
            {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16},
            r"window.* 16; .*max_prompt_tokens",
        ),
    ],
)
def test_attention_of_another_kind_is_refused(model_folder, changes, message):
    model = load_causal_lm(str(model_folder), "float32")
    for key, value in changes.items():
        setattr(model.config, key, value)
    with pytest.raises(ConfigurationError, match=message):
        decode(open_runner(model), request_of(prompts_of([10])))


def test_experts_and_positions_that_scale_with_the_batch_promise_no_invariance(model_folder, tmp_path):
    experts = build_experts(tmp_path / "experts")
    assert TorchRolloutEngine(str(experts), "float32", 10, 10, experts).capabilities["batch_invariant"] is False
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert TorchRolloutEngine(str(folder), "float32", 10, 10, folder).capabilities["batch_invariant"] is False


def test_folders_that_are_not_models_are_refused(model_folder, tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere: .*config\.json"):
        load_causal_lm(str(tmp_path / "nowhere"), "float32")
    with pytest.raises(ConfigurationError, match="float32, bfloat16"):
        load_causal_lm(str(model_folder), "float16")
    folder = shutil.copytree(model_folder, tmp_path / "model")
    save_file({"model.norm.weight": torch.ones(64)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"\d+ tensors.* lm_head"):
        load_causal_lm(str(folder), "float32")
    (folder / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ConfigurationError, match=str(folder)):
        load_causal_lm(str(folder), "float32")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match=r"\*\.safetensors"):
        load_causal_lm(str(folder), "float32")
    (folder / "config.json").write_text("{")
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"config\.json.*JSON"):
        load_causal_lm(str(folder), "float32")


def test_code_in_a_model_folder_is_not_run(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigurationError, match=str(folder)):
        load_causal_lm(str(folder), "float32")
    assert not (tmp_path / "ran").exists()


def test_rows_are_padded_beyond_their_prompt_to_a_multiple_of_slots():
    lengths = np.arange(1, 2000)
    padded = np.array([padded_length(int(length)) for length in lengths])
    assert (padded > lengths).all() and (padded % 8 == 0).all()
    assert (padded[63:] <= 1.26 * lengths[63:]).all()


def test_stop_tokens_outside_the_vocabulary_are_never_sampled(torch_engine):
    result = torch_engine.engine.generate(request_of(prompts_of([5]), stop_tokens=(STOP, 10_000)))
    assert len(result.lengths) == 1


def test_a_sleeping_engine_frees_its_cache(model_folder):
    case = torch_case(model_folder)
    engine = case.engine
    engine.update_weights(case.weights(0), 0)

    cached = partial(held_bytes, engine._runner)
    assert engine.capabilities["sleep"]
    engine.generate(request_of(prompts_of([5, 40]), samples=4))
    held = cached()
    engine.sleep()
    assert cached() == 0 < held
    engine.generate(request_of(prompts_of([5, 40]), samples=4))
    assert cached() == held


SHAPED = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.4, "min_new_tokens": 5}


def test_shaped_log_probs_match_hugging_faces_processors(torch_engine, plain_model):
    prompts = prompts_of([1, 9, 31])
    stops = tuple(range(1, 40))
    request = request_of(prompts, samples=4, max_new_tokens=MAX_NEW, stop_tokens=stops, **SHAPED)
    result = torch_engine.engine.generate(request)
    assert result.lengths.min() > SHAPED["min_new_tokens"] and (result.finish == 0).any()
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        prompt = prompts[row // 4]
        drawn = np.frombuffer(tokens, np.int32).astype(np.int64)
        whole = torch.from_numpy(np.concatenate([prompt, drawn]).astype(np.int64))[None]
        with torch.no_grad():
            logits = plain_model(input_ids=whole).logits[0].float()
        shape = processors(len(prompt), stops, 0.8, 0.9, 20, 0.02, 1.4, SHAPED["min_new_tokens"])
        for step, given in enumerate(np.frombuffer(log_probs, np.float32)):
            end = len(prompt) + step
            expected = shape(whole[:, :end], logits[end - 1 : end].clone()).log_softmax(-1)
            assert abs(float(expected[0, drawn[step]]) - float(given)) < 5e-5


def test_shaped_responses_do_not_depend_on_their_batch(model_folder):
    prompts = prompts_of([3, 17, 40, 8, 25, 60])
    seeds = np.arange(18, dtype=np.uint64).reshape(6, 3)
    options = {"max_new_tokens": MAX_NEW, "stop_tokens": tuple(range(1, 40)), **SHAPED}
    engine = build_case("torch", model_folder).engine
    waiting = build_case("torch-waiting", model_folder).engine
    together = rows_of(engine.generate(request_of(prompts, seeds=seeds, **options)))
    assert rows_of(waiting.generate(request_of(prompts, seeds=seeds, **options))) == together
    for place in range(6):
        part = slice(place, place + 1)
        alone = rows_of(engine.generate(request_of(prompts[part], seeds=seeds[part], **options)))
        assert alone == together[3 * place : 3 * place + 3]


def test_greedy_answers_ignore_the_settings_of_sampling(torch_engine):
    prompts = prompts_of([5, 12])
    plain, shaped = (
        rows_of(torch_engine.engine.generate(request_of(prompts, max_new_tokens=MAX_NEW, greedy=True, **options)))
        for options in ({}, SHAPED)
    )
    assert plain == shaped


CUT = {name: value for name, value in SHAPED.items() if name != "repetition_penalty"}


def test_the_recorded_support_is_what_the_settings_leave(torch_engine, plain_model):
    prompts = prompts_of([1, 9, 31])
    stops = tuple(range(1, 40))
    request = request_of(prompts, samples=4, max_new_tokens=MAX_NEW, stop_tokens=stops, record_support=True, **CUT)
    result = torch_engine.engine.generate(request)
    plain = torch_engine.engine.generate(replace(request, record_support=False))
    assert rows_of(plain) == rows_of(result) and plain.support is None
    checked = 0
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        prompt = prompts[row // 4]
        drawn = np.frombuffer(tokens, np.int32).astype(np.int64)
        whole = torch.from_numpy(np.concatenate([prompt, drawn]).astype(np.int64))[None]
        with torch.no_grad():
            logits = plain_model(input_ids=whole).logits[0].float()
        shape = processors(len(prompt), stops, 0.8, 0.9, 20, 0.02, 1.0, CUT["min_new_tokens"])
        for step, given in enumerate(np.frombuffer(log_probs, np.float32)):
            end = len(prompt) + step
            kept = shape(whole[:, :end], logits[end - 1 : end].clone())[0] > -torch.inf
            support = result.support.at(slice(checked, checked + 1)).tokens
            assert support.tolist() == kept.nonzero()[:, 0].tolist()
            scores = logits[end - 1, support.astype(np.int64)].double() / 0.8
            expected = scores.log_softmax(0)[support.tolist().index(drawn[step])]
            assert abs(float(expected) - float(given)) < 5e-5
            checked += 1
    assert checked == len(result.tokens)


def test_supports_do_not_depend_on_their_batch_or_the_order_of_responses(model_folder):
    prompts = prompts_of([3, 17, 40, 8, 25, 60])
    seeds = np.arange(18, dtype=np.uint64).reshape(6, 3)
    options = {"max_new_tokens": MAX_NEW, "record_support": True, **CUT}
    engine = build_case("torch", model_folder).engine
    waiting = build_case("torch-waiting", model_folder).engine
    together = engine.generate(request_of(prompts, seeds=seeds, **options))
    pieces = [piece for piece in waiting.stream(request_of(prompts, seeds=seeds, **options)) if piece is not None]
    assert len(pieces) > 3
    joined = join_pieces(pieces).result
    assert joined.support_tokens.tobytes() == together.support_tokens.tobytes()
    assert joined.support_sizes.tobytes() == together.support_sizes.tobytes()
    assert together.support.contains(together.tokens).all()
