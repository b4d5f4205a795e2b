"""The benchmarks of the torch engines, with less work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import benchmarks.step
from benchmarks.generation import LONGEST, MEDIAN, REQUESTS, SHORTEST, equal_work, mixed_work
from benchmarks.step import PARTS, PEERS, Stepper, gradient_gap, spec_of, trl_ratios, trl_step


def test_mixed_work_requests_log_normal_lengths() -> None:
    work = mixed_work()
    assert len(work.lengths) == REQUESTS
    assert SHORTEST <= work.lengths.min() < MEDIAN / 2 and 2 * MEDIAN < work.lengths.max() <= LONGEST
    assert abs(np.median(work.lengths) - MEDIAN) < MEDIAN / 4
    request = work.request
    assert request.prompt_limits.tolist() == work.lengths.tolist() and request.stop_tokens == ()
    assert work.tokens == work.lengths.sum()
    assert equal_work().tokens == 64 * 64


def test_without_the_peers_environment_there_are_no_figures_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks.step, "PEERS", tmp_path / "absent")
    theirs = {"fp32": trl_step(tmp_path / "trl", "float32", 1), "bf16": 6.0}
    assert trl_ratios(theirs, {"fp32": 2.0, "bf16": 1.5}) == {
        "trl_ratio_fp32": None, "trl_step_cpu_s_fp32": None, "trl_ratio_bf16": 4.0, "trl_step_cpu_s_bf16": 6.0,
    }  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_trl_takes_the_same_steps(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not PEERS.exists():
        pytest.fail("the peers' environment is missing; `make verify` makes it, as does ops/bootstrap.py --peers")
    for name, value in {"VOCABULARY": 64, "PROMPTS": 2, "SAMPLES": 4, "PROMPT": 8, "RESPONSE": 5}.items():
        monkeypatch.setattr(benchmarks.step, name, value)
    seconds = trl_step(tmp_path / "trl", dtype, 2)
    assert seconds is not None and seconds > 0.0


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
