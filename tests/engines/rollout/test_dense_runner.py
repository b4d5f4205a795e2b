"""The fast runner: agreement with transformers' module, shared prompts, and prompts that wait for others."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.held_bytes import held_bytes
from tests.engines.rollout.cases import MAX_NEW, STOP, build_case, prompts_of, request_of, rows_of, torch_case
from tests.engines.rollout.test_torch_engine import plain_log_probs
from tests.engines.train.test_dense_passes import MODELS, make_model
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.errors import DataError
from yatt_core.models.loading import load_causal_lm


@pytest.fixture
def steps(monkeypatch):
    """Records the active rows of each decoding step and the prompts of each prefill while a test runs."""
    seen = {"steps": [], "prefills": []}
    step = DenseRunner.step
    prefill = DenseRunner.prefill

    def counted_step(self, rows):
        seen["steps"].append(rows.alive)
        return step(self, rows)

    def counted_prefill(self, request, members, places, rows):
        seen["prefills"].append(members.tolist())
        return prefill(self, request, members, places, rows)

    monkeypatch.setattr(DenseRunner, "step", counted_step)
    monkeypatch.setattr(DenseRunner, "prefill", counted_prefill)
    return seen


@pytest.mark.parametrize("name", MODELS)
def test_log_probs_match_transformers(name):
    model = make_model(name)
    prompts = [np.minimum(prompt, 23) for prompt in prompts_of([1, 7, 8, 40])]
    result = decode(open_runner(model), request_of(prompts, samples=3, temperature=0.7))
    assert isinstance(open_runner(model), DenseRunner)
    for row, (tokens, log_probs, _) in enumerate(rows_of(result)):
        drawn = np.frombuffer(tokens, np.int32)
        expected = plain_log_probs(model, prompts[row // 3], drawn, 0.7)
        gaps = expected[np.arange(len(drawn)), drawn] - np.frombuffer(log_probs, np.float32)
        assert np.abs(gaps).max() < 2e-5


def test_both_runners_give_the_same_responses(model_folder):
    request = request_of(prompts_of([3, 20, 60]), samples=4, greedy=True, max_new_tokens=MAX_NEW)
    model = load_causal_lm(str(model_folder), "float32")
    fast, general = (decode(kind(model), request) for kind in (DenseRunner, ModuleRunner))
    assert fast.tokens.tolist() == general.tokens.tolist()
    np.testing.assert_allclose(fast.log_probs, general.log_probs, atol=2e-5)


def test_a_group_holds_its_prompt_once(model_folder):
    model = load_causal_lm(str(model_folder), "float32")
    request = request_of(prompts_of([300]), samples=16)
    fast = DenseRunner(model)
    general = ModuleRunner(model)
    for runner in (fast, general):
        decode(runner, request)
    # 304 slots once plus 16 for each of 17 rows, against 320 for each row.
    assert held_bytes(fast) * (17 * 320) == held_bytes(general) * (304 + 17 * 16)


def test_waiting_prompts_enter_as_others_end_without_changing_results(model_folder, steps):
    limits = np.random.default_rng(0).integers(1, MAX_NEW, 40).astype(np.int32)
    request = request_of(
        prompts_of(np.random.default_rng(1).integers(1, 60, 40)), limits=limits, max_new_tokens=MAX_NEW, stop_tokens=()
    )
    runner = DenseRunner(load_causal_lm(str(model_folder), "float32"))
    everyone = rows_of(decode(runner, request))
    assert steps["steps"][0] == (limits > 1).sum()
    steps["steps"].clear()
    steps["prefills"].clear()
    assert rows_of(decode(runner, request, max_num_seqs=8)) == everyone
    assert max(steps["steps"]) == 8
    assert sorted(itertools.chain.from_iterable(steps["prefills"])) == list(range(40))
    assert len(steps["steps"]) < 1.5 * limits.sum() / 8, "places that become free are reused"


def test_a_finished_group_frees_its_prompts_place(model_folder):
    limits = np.array([2, 9, 4, 9, 1, 3], np.int32)
    request = request_of(prompts_of([5, 60, 9, 33, 17, 2]), samples=3, limits=limits, stop_tokens=(STOP,))
    model = load_causal_lm(str(model_folder), "float32")
    assert rows_of(decode(DenseRunner(model), request, max_num_seqs=6)) == rows_of(decode(DenseRunner(model), request))


@pytest.mark.parametrize("folder", ["model_folder", "odd_model_folder"])
def test_long_prompts_and_responses_keep_their_bits_among_others(folder, request):
    """Alone, a row attends over its own slots; in a batch, over as many slots as the longest row has."""
    runner = DenseRunner(load_causal_lm(str(request.getfixturevalue(folder)), "float32"))
    prompts = prompts_of([3, 200, 70, 300, 15, 130])
    limits = np.array([150, 10, 140, 100, 40, 63], np.int32)
    seeds = np.arange(18, dtype=np.uint64).reshape(6, 3)
    options = {"max_new_tokens": 150, "stop_tokens": ()}
    together = rows_of(decode(runner, request_of(prompts, seeds=seeds, limits=limits, **options)))
    for member in range(6):
        one = slice(member, member + 1)
        alone = decode(runner, request_of(prompts[one], seeds=seeds[one], limits=limits[one], **options))
        assert rows_of(alone) == together[3 * member : 3 * member + 3]


@pytest.mark.parametrize("folder", ["model_folder", "odd_model_folder"])
def test_a_response_does_not_depend_on_the_size_of_its_group(folder, request):
    runner = DenseRunner(load_causal_lm(str(request.getfixturevalue(folder)), "float32"))
    seeds = np.arange(66, dtype=np.uint64)[None]
    whole = rows_of(decode(runner, request_of(prompts_of([90]), seeds=seeds)))
    for size in (1, 2, 3, 4, 5, 9, 31, 33, 49, 65):
        assert rows_of(decode(runner, request_of(prompts_of([90]), seeds=seeds[:, :size]))) == whole[:size]


def test_a_prompt_without_tokens_is_named_before_anything_runs(model_folder, steps):
    with pytest.raises(DataError, match="prompt 1 of the decode batch"):
        decode(open_runner(load_causal_lm(str(model_folder), "float32")), request_of(prompts_of([3, 0])))
    assert steps == {"steps": [], "prefills": []}


def test_new_weights_reach_the_fused_matrices(model_folder):
    case = torch_case(model_folder)
    case.engine.update_weights(case.weights(3), 3)
    fresh = build_case("torch-general", model_folder)
    fresh.engine.update_weights(fresh.weights(3), 3)
    request = request_of(prompts_of([5, 30]), samples=2, greedy=True, weight_version=3)
    assert case.engine.generate(request).tokens.tolist() == fresh.engine.generate(request).tokens.tolist()


def test_bfloat16_decodes_close_to_float32(model_folder):
    request = request_of(prompts_of([5, 30, 100]), samples=4, max_new_tokens=1, greedy=True)
    found = [
        decode(DenseRunner(load_causal_lm(str(model_folder), dtype)), request).log_probs
        for dtype in ("float32", "bfloat16")
    ]
    assert 0 < np.abs(found[0] - found[1]).max() < 0.3
    assert torch.get_num_threads() == 1


def test_bfloat16_keeps_what_it_has_decoded(model_folder):
    """Tokens stay accurate after the store has been widened several times and other responses have left."""
    request = request_of(
        prompts_of([5, 30, 100]), samples=4, max_new_tokens=40, stop_tokens=(), limits=np.array([40, 7, 36])
    )
    result = decode(DenseRunner(load_causal_lm(str(model_folder), "bfloat16")), request, max_num_seqs=8)
    assert result.lengths.tolist() == [40] * 4 + [7] * 4 + [36] * 4
    wide = load_causal_lm(str(model_folder), "float32")
    start = 0
    for row, length in enumerate(result.lengths):
        tokens, found = (part[start : start + length] for part in (result.tokens, result.log_probs))
        every = plain_log_probs(wide, request.prompts[row // 4], tokens)
        gaps = np.abs(every[np.arange(length), tokens] - found)
        start = start + int(length)
        assert gaps.max() < 0.3 and gaps.mean() < 0.05
        assert gaps[20:].sum() < 3 * max(gaps[:20].sum(), 0.1), "no worse after the first slots"
