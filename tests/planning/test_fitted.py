"""Constants fitted to a run's records: known constants are recovered; with too few records, the card's are used."""

from __future__ import annotations

import numpy as np
import pytest

from yatt_core.placement.workload import EngineConstants
from yatt_core.planning.assumptions import Spread
from yatt_core.planning.time.fitted import BatchWork, IterationTimes, fit
from yatt_core.planning.time.times import TrainingTimes

CARDS = EngineConstants(
    base_s=1.0, per_sequence_s=1.0, per_context_token_s=1.0, per_prompt_token_s=1.0, max_concurrent=77
)
TRAINING = TrainingTimes(1.0, 1.0, 1.0, 1.0, 1.0)


def batches(count: int) -> list[BatchWork]:
    noise = np.random.default_rng(0)
    shapes = zip(noise.integers(50, 400, count).tolist(), noise.integers(2, 60, count).tolist(), strict=True)
    work = [(steps, steps * rows, steps * rows * 300) for steps, rows in shapes]
    return [BatchWork(s, q, c, 0.01 * s + 2e-4 * q + 1e-6 * c, (3, 5), (7, 7)) for s, q, c in work]


def iterations(tokens: list[float], fixed: float, each: float) -> list[IterationTimes]:
    return [
        IterationTimes(count, fixed + each * count, 0.25, 3.0 if n == 1 else None, 0.5)
        for n, count in enumerate(tokens)
    ]


def test_known_constants_are_recovered():
    found = fit("run-1", batches(40), iterations([1e4, 2e4, 4e4, 3e4], 2.0, 1e-4), ranks=2)
    engine = found.rollout_constants(CARDS)
    assert engine.base_s == pytest.approx(0.01, rel=1e-6)
    together = engine.per_sequence_s + 300 * engine.per_context_token_s
    assert together == pytest.approx(2e-4 + 3e-4, rel=1e-6), "context is proportional to the sequences here"
    assert (engine.per_prompt_token_s, engine.max_concurrent) == (0.0, 77)
    training = found.training_times(TRAINING, 1.0)
    assert training.fixed_s == pytest.approx(2.5), "includes the rest of an iteration"
    assert training.learn_s == pytest.approx(2e-4), "the seconds of two devices"
    assert found.training_times(TRAINING, 4.0).learn_s == pytest.approx(8e-4), "devices without a rank count too"
    assert (training.prepare_s, training.sync_s, training.checkpoint_s) == (0.0, 0.25, 3.0)
    assert "fitted to 40 shards" in found.told[0]
    assert found.prompt == Spread(4.0, pytest.approx(0.2554, rel=1e-3))
    assert found.response == Spread(7.0, 0.0)


def test_equal_iterations_yield_no_fixed_seconds():
    found = fit("run-1", [], iterations([1e4] * 5, 2.0, 1e-4), ranks=1)
    assert found.fixed_s == 0.5, "only the rest of an iteration"
    assert found.token_device_s == pytest.approx(3e-4)


def test_too_few_records_leave_the_cards():
    found = fit("run-1", batches(3), iterations([1e4], 1.0, 1.0), ranks=1)
    assert found.rollout_constants(CARDS) == CARDS
    assert found.training_times(TRAINING, 4.0) == TRAINING
    assert [" 8 are needed" in found.told[0], " 3 are needed" in found.told[1]] == [True, True]
