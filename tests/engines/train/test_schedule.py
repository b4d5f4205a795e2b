"""The learning rate over a run."""

from __future__ import annotations

import math

import pytest

from yatt_core.engines.train.steps.schedule import learning_rate_factor
from yatt_core.spec.sections.trainer import ScheduleSpec


def test_the_constant_schedule_rises_and_stays() -> None:
    schedule = ScheduleSpec(lr_warmup_iterations=4)
    assert [learning_rate_factor(schedule, k, 10) for k in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_to_their_min_lr_ratio() -> None:
    linear = ScheduleSpec(kind="linear", lr_warmup_iterations=2, min_lr_ratio=0.1)
    shares = [learning_rate_factor(linear, k, 10) for k in range(1, 12)]
    assert shares == pytest.approx([0.5, 1.0, *(1.0 - 0.9 * step / 8 for step in range(9))])
    cosine = ScheduleSpec(kind="cosine", min_lr_ratio=0.2)
    for k in (1, 3, 8):
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * (k - 1) / 8)) / 2
        assert learning_rate_factor(cosine, k, 8) == pytest.approx(expected)
    assert learning_rate_factor(cosine, 9, 8) == pytest.approx(0.2)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_no_iteration_of_a_run_is_learned_at_rate_zero(kind: str) -> None:
    for iterations in (1, 2, 7):
        for sft in (0, 1, 7, 9):
            schedule = ScheduleSpec(kind=kind, lr_warmup_iterations=sft)  # type: ignore[arg-type]
            assert all(0.0 < learning_rate_factor(schedule, k, iterations) <= 1.0 for k in range(1, iterations + 1))
