"""The contract that every rollout engine keeps."""

import subprocess
import sys

import numpy as np
import pytest

from tests.engines.rollout.cases import MAX_NEW, STOP, prompts_of, request_of, result_digest, rows_of
from tests.matrix import in_verify
from tests.needs import NEEDS_VLLM
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.protocols.generation import FINISHED_LENGTH, FINISHED_STOP


def test_capabilities_are_named(case):
    expected = {"batch_invariant": True, "sleep": True, "in_flight_update": False}
    expected |= {} if case.name == "virtual" else {"delta_sync": True}
    expected |= {"several_calls": True} if case.name == "torch-continuous" else {}
    if case.name == "vllm":
        expected = {"batch_invariant": True, "sleep": False, "in_flight_update": True, "several_calls": True}
        expected |= {"delta_sync": False}
    assert case.engine.capabilities == expected


def test_rows_come_prompt_by_prompt(case):
    result = case.engine.generate(request_of(prompts_of([4, 6]), samples=3))
    assert result.lengths.shape == result.finish.shape == (6,)
    assert result.tokens.shape == result.log_probs.shape == (result.lengths.sum(),)
    assert (result.tokens.dtype, result.log_probs.dtype) == (np.int32, np.float32)
    assert (result.lengths.dtype, result.finish.dtype) == (np.int32, np.int8)
    assert result.weight_version == 0 and result.seconds > 0
    assert (result.log_probs <= 0).all()


def test_an_empty_batch_has_an_empty_answer(case):
    result = case.engine.generate(request_of([], seeds=np.zeros((0, 4), np.uint64)))
    assert len(result.lengths) == len(result.tokens) == len(result.log_probs) == 0


def test_same_seeds_give_the_same_bits(case):
    request = request_of(prompts_of([5, 40]), samples=4)
    assert rows_of(case.engine.generate(request)) == rows_of(case.engine.generate(request))


def test_other_seeds_give_other_responses(case):
    prompts = prompts_of([5, 5])
    first = rows_of(case.engine.generate(request_of(prompts, samples=4)))
    other = rows_of(case.engine.generate(request_of(prompts, seeds=np.arange(8, dtype=np.uint64).reshape(2, 4))))
    assert len(set(first)) == 8
    assert not set(first) & set(other)


@pytest.mark.parametrize(
    "case", ["torch", "virtual", pytest.param("vllm", marks=[NEEDS_VLLM, pytest.mark.verify])], indirect=True
)
def test_a_fresh_process_gives_the_same_bits(case):
    expected = result_digest(case.engine.generate(request_of(prompts_of([3, 9, 20, 70]), samples=4)))
    command = [sys.executable, "-m", "tests.engines.rollout.fresh_process", case.name, str(case.folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout == expected


@pytest.mark.parametrize("temperature", [0.7, *in_verify(1.0)])
def test_a_response_does_not_depend_on_its_batch(case, temperature):
    lengths = np.random.default_rng(1).integers(1, 90, 160)
    lengths[:4] = [1, 8, 300, 200]
    prompts = prompts_of(lengths)
    seeds = np.arange(160, dtype=np.uint64)[:, None]

    def answer(members):
        chosen = [prompts[i] for i in members]
        request = request_of(chosen, seeds=seeds[members], max_new_tokens=MAX_NEW, temperature=temperature)
        return dict(zip(members, rows_of(case.engine.generate(request)), strict=True))

    all_rows = answer(list(range(160)))
    assert len(set(all_rows.values())) > 150
    for members in ([0], [1, 2], [7, 3, 150], list(range(32)), list(range(159, 127, -1))):
        assert answer(members) == {member: all_rows[member] for member in members}
    reordered = np.random.default_rng(2).permutation(160).tolist()
    assert answer(reordered) == all_rows


def test_a_response_does_not_depend_on_its_group(case):
    prompts = prompts_of([7, 33])
    seeds = np.arange(64, dtype=np.uint64).reshape(2, 32)
    grouped = rows_of(case.engine.generate(request_of(prompts, seeds=seeds)))
    alone = rows_of(case.engine.generate(request_of([prompts[1]], seeds=seeds[1:, 5:6])))
    apart = rows_of(case.engine.generate(request_of([prompts[1]] * 32, seeds=seeds[1][:, None])))
    assert alone == [grouped[37]]
    assert apart == grouped[32:]


def test_a_stop_token_ends_a_response_and_is_part_of_it(case):
    result = case.engine.generate(request_of(prompts_of([6] * 30), samples=8, max_new_tokens=MAX_NEW))
    rows = [np.frombuffer(tokens, np.int32) for tokens, _, _ in rows_of(result)]
    stopped = result.finish == FINISHED_STOP
    assert 10 < stopped.sum() < 230
    assert all(row[-1] == STOP and STOP not in row[:-1] for row, stop in zip(rows, stopped, strict=True) if stop)
    assert all(STOP not in row and len(row) == MAX_NEW for row, stop in zip(rows, stopped, strict=True) if not stop)
    assert set(result.finish[~stopped]) == {FINISHED_LENGTH}


def test_each_of_several_stop_tokens_ends_a_response(case):
    stops = tuple(range(1, 20))
    result = case.engine.generate(request_of(prompts_of([6] * 10), samples=4, stop_tokens=stops))
    rows = [np.frombuffer(tokens, np.int32) for tokens, _, _ in rows_of(result)]
    assert all(not np.isin(row[:-1], stops).any() for row in rows)
    assert (np.isin([row[-1] for row in rows], stops) == (result.finish == FINISHED_STOP)).all()


def test_without_stop_tokens_all_run_to_the_limit(case):
    result = case.engine.generate(request_of(prompts_of([6, 9]), samples=2, stop_tokens=(), max_new_tokens=5))
    assert result.lengths.tolist() == [5] * 4
    assert result.finish.tolist() == [FINISHED_LENGTH] * 4


def test_each_prompt_keeps_its_own_limit_and_is_independent_of_the_others(case):
    prompts = prompts_of([6, 9, 12])
    limits = [12, 2, 5]
    whole = rows_of(case.engine.generate(request_of(prompts, samples=8)))
    limited = rows_of(case.engine.generate(request_of(prompts, samples=8, limits=np.array(limits, np.int32))))
    for number, (found, expected) in enumerate(zip(limited, whole, strict=True)):
        limit = limits[number // 8]
        assert found[:2] == (expected[0][: 4 * limit], expected[1][: 4 * limit])
        assert found[2] == (expected[2] if len(expected[0]) <= 4 * limit else FINISHED_LENGTH)
    assert any(len(tokens) == 8 for tokens, _, _ in limited)


def test_a_limit_of_one_token(case):
    result = case.engine.generate(request_of(prompts_of([6, 9]), samples=3, max_new_tokens=1))
    assert result.lengths.tolist() == [1] * 6


def test_a_stop_at_the_limit_is_a_stop(case):
    result = case.engine.generate(request_of(prompts_of([6] * 40), samples=8, max_new_tokens=1))
    assert ((result.tokens == STOP) == (result.finish == FINISHED_STOP)).all()
    assert (result.finish == FINISHED_STOP).any()


def test_greedy_needs_no_seed(case):
    prompts = prompts_of([6, 30])
    first = rows_of(case.engine.generate(request_of(prompts, samples=2, greedy=True, temperature=0.3)))
    other_seeds = np.full((2, 2), 5, np.uint64)
    other = rows_of(case.engine.generate(request_of(prompts, seeds=other_seeds, greedy=True)))
    assert first == other
    assert first[0] == first[1] != first[2]


def test_a_version_other_than_the_held_one_is_refused(case):
    with pytest.raises(InfrastructureError, match=r"version 0.*version 3"):
        case.engine.generate(request_of(prompts_of([4]), weight_version=3))


def test_an_empty_prompt_is_refused(case):
    with pytest.raises(DataError, match="prompt 1 "):
        case.engine.generate(request_of(prompts_of([4, 0])))


def test_new_weights_change_responses_and_the_old_ones_bring_them_back(case):
    prompts = prompts_of([5, 19])
    before = rows_of(case.engine.generate(request_of(prompts, samples=8)))
    case.engine.update_weights(case.weights(1), 1)
    assert case.engine.version == 1
    after = rows_of(case.engine.generate(request_of(prompts, samples=8, weight_version=1)))
    case.engine.update_weights(case.weights(0), 2)
    again = rows_of(case.engine.generate(request_of(prompts, samples=8, weight_version=2)))
    assert before == again
    assert not set(before) & set(after)


def test_weights_may_be_read_only(case):
    tensors = {name: tensor.copy() for name, tensor in case.weights(0).items()}
    for tensor in tensors.values():
        tensor.flags.writeable = False
    case.engine.update_weights(tensors, 4)
    assert case.engine.version == 4


def test_sleeping_does_not_change_the_answers(case):
    request = request_of(prompts_of([5, 40]), samples=4)
    awake = rows_of(case.engine.generate(request))
    case.engine.sleep()
    assert rows_of(case.engine.generate(request)) == awake
