"""The virtual rollout engine beyond the contract: durations, lengths, and what its responses depend on."""

import numpy as np
import pytest

from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.protocols.generation import FINISHED_LENGTH, GenerateRequest
from yatt_core.spec.sections.rollout import VirtualRollout

WEIGHTS = {"state": np.arange(32, dtype=np.uint8)}


def engine_of(seed=0, slept=None, weights=WEIGHTS, **options):
    spec = VirtualRollout(**{"base_seconds": 0, "seconds_per_sequence": 0, **options})
    clock = ScaledClock(spec.clock_factor, [].append if slept is None else slept.append)
    engine = VirtualRolloutEngine(spec, seed, clock)
    engine.update_weights(weights, 3)
    return engine


def request_of(prompts=4, samples=8, limit=64, **options):
    seeds = np.arange(prompts * samples, dtype=np.uint64).reshape(prompts, samples)
    texts = [np.full(5, 10 + prompt, np.int32) for prompt in range(prompts)]
    return GenerateRequest(texts, seeds, limit, (1,), 3, **options)


def digest(engine, request=None):
    result = engine.generate(request or request_of())
    return (result.tokens.tobytes(), result.log_probs.tobytes(), result.lengths.tobytes())


def test_a_batch_takes_its_decode_steps_with_finished_sequences_leaving():
    slept = []
    result = engine_of(slept=slept, base_seconds=0.5, seconds_per_sequence=0.01, clock_factor=4).generate(request_of())
    steps = [int((result.lengths > step).sum()) for step in range(result.lengths.max())]
    assert steps[0] == 32 > steps[-1] > 0
    assert slept == [pytest.approx(sum(0.5 + 0.01 * sequences for sequences in steps) / 4)]


def test_a_stream_divides_its_sleep_among_its_pieces():
    whole = []
    parts = []
    times = {"base_seconds": 0.5, "seconds_per_sequence": 0.01, "clock_factor": 4}
    engine_of(slept=whole, **times).generate(request_of())
    came = [len(parts) for _ in engine_of(slept=parts, **times).stream(request_of())]
    assert sum(parts) == pytest.approx(whole[0])
    assert len(came) > 1 and came == list(range(1, len(came) + 1))


def test_zero_durations_cause_no_sleep():
    slept = []
    engine_of(slept=slept).generate(request_of())
    assert slept == []


def test_lengths_are_log_normal_and_truncated():
    result = engine_of(median_tokens=16, sigma=0.5).generate(request_of(prompts=100, samples=100, limit=40))
    logarithms = np.log(result.lengths[result.finish != FINISHED_LENGTH])
    assert np.median(result.lengths) == pytest.approx(16, abs=1)
    assert np.quantile(logarithms, 0.16) == pytest.approx(np.log(16) - 0.5, abs=0.08)
    share_cut = (result.finish == FINISHED_LENGTH).mean()
    assert share_cut == pytest.approx(0.033, abs=0.01)
    assert (result.lengths[result.finish == FINISHED_LENGTH] == 40).all()


def test_tokens_cover_the_vocabulary():
    result = engine_of(vocabulary=7, median_tokens=16).generate(request_of(prompts=20))
    assert set(result.tokens.tolist()) == set(range(7))


def test_responses_depend_on_the_weights_themselves_not_on_their_version():
    changed = {"state": WEIGHTS["state"].copy()}
    changed["state"][31] ^= 1
    engine = engine_of()
    before = digest(engine)
    engine.update_weights(WEIGHTS, 3)
    assert digest(engine) == before
    assert digest(engine_of(weights=changed)) != before


def test_responses_depend_on_run_seed_and_prompt():
    request = request_of(prompts=2)
    assert digest(engine_of(seed=1), request) != digest(engine_of(seed=2), request)
    result = engine_of().generate(GenerateRequest(request.prompts, request.seeds[[0, 0]], 64, (), 3))
    assert (result.tokens[: 8 * 64] != result.tokens[8 * 64 :]).any()
