"""The benchmarks of the torch engines, with less work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import benchmarks.step
from benchmarks.generation import LONGEST, MEDIAN, REQUESTS, SHORTEST, equal_work, mixed_work
from benchmarks.step import PARTS, Stepper, gradient_gap, spec_of


def test_mixed_work_requests_log_normal_lengths() -> None:
    work = mixed_work()
    assert len(work.lengths) == REQUESTS
    assert SHORTEST <= work.lengths.min() < MEDIAN / 2 and 2 * MEDIAN < work.lengths.max() <= LONGEST
    assert abs(np.median(work.lengths) - MEDIAN) < MEDIAN / 4
    request = work.request
    assert request.prompt_limits.tolist() == work.lengths.tolist() and request.stop_tokens == ()
    assert work.tokens == work.lengths.sum()
    assert equal_work().tokens == 64 * 64


def test_each_part_of_a_step_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VOCABULARY": 64, "PROMPTS": 2, "SAMPLES": 4, "PROMPT": 8, "RESPONSE": 5}.items():
        monkeypatch.setattr(benchmarks.step, name, value)
    stepper = Stepper(tmp_path / "step", spec_of("float32", "auto"))
    for _ in range(2):
        stepper.take()
    assert stepper.trainer.version == stepper.rollout.version == 2
    assert [tuple(parts) for parts in stepper.seconds] == [PARTS] * 2
    assert stepper.least in stepper.seconds
    ours, theirs = (Stepper(tmp_path / path, spec_of("float32", path)) for path in ("auto", "general"))
    assert 0 < gradient_gap(ours, theirs) < 2e-6
