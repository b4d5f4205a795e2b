"""How a machine multiplies bfloat16 is said before a run that would do so there, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from ops.preflight.bfloat16 import bfloat16_products
from ops.preflight.exactness import Exactness
from tests.spec.trees import VIRTUAL, spec
from yatt_core.bfloat16 import choice
from yatt_core.bfloat16.choice import MatmulRates
from yatt_core.input_building import engine_check

HALF: dict[str, Any] = {"exact": False, "trainer__engine": {"kind": "torch", "ranks": 1, "dtype": "bfloat16"}}


@pytest.mark.parametrize("way", ["native", "widened"])
def test_the_way_is_said_with_rates(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "way_of_processor", lambda: way)
    monkeypatch.setattr(choice, "measured_rates", lambda products: MatmulRates(float32=51.0, bfloat16=45.0))
    found = bfloat16_products(spec(**HALF))
    assert found.facts == {"roles": ["trainer.engine"], "way": way, "float32": 51.0, "bfloat16": 45.0}
    (line,) = found.lines
    assert line.startswith(f"trainer.engine: products of bfloat16 are {way}")
    assert "45 GFLOP/s in bfloat16, 51 in float32" in line
    assert not found.warnings


def test_a_rate_far_below_that_of_float32_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "measured_rates", lambda products: MatmulRates(float32=51.0, bfloat16=0.4))
    (warning,) = bfloat16_products(spec(**HALF)).warnings
    assert warning.startswith("trainer.engine: ")
    assert "0.4 GFLOP/s" in warning


@pytest.mark.parametrize("changes", [{}, VIRTUAL])
def test_nothing_is_said_of_a_run_without_bfloat16(changes: dict[str, Any]) -> None:
    found = bfloat16_products(spec(**changes))
    assert (found.facts, found.lines, found.warnings) == ({}, [], [])


def test_nothing_is_said_of_the_processors_of_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    assert not bfloat16_products(spec(**HALF)).lines


def test_an_aligned_run_multiplies_in_float32_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "way_of_processor", lambda: "native")
    narrow = {"kind": "torch", "dtype": "bfloat16"}
    found = bfloat16_products(spec(exact="aligned", rollout__engine=narrow, trainer__engine=narrow))
    assert found.facts == {}
    (line,) = found.lines
    assert line.startswith("trainer.engine, rollout.engine: exact: aligned multiplies bfloat16 values in float32")


def test_what_an_aligned_run_promises_is_said() -> None:
    (exact, aligned) = Exactness.of(spec(exact="aligned")).lines
    assert exact.startswith("exact: ") and aligned.startswith("aligned: the trainer computes the sampler's")
    assert len(Exactness.of(spec(exact=True)).lines) == 1


def test_what_engines_on_gpus_are_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = {"kind": "vllm", "dtype": "bfloat16", "instances": 1}
    served = spec(rollout__engine=engine, exact=True)
    by_default = spec(rollout__engine=engine)
    monkeypatch.setattr(engine_check, "runs_on_accelerators", lambda kind, given: True)
    (exact, asked) = Exactness.of(served).lines
    assert exact.startswith("exact: ")
    assert asked.startswith("exact on GPUs: rollout.engine is opened in vLLM's batch-invariant mode")
    (obstacle,) = Exactness.of(by_default).obstacles
    assert obstacle.startswith("vLLM on GPUs may answer differently") and "exact: true" in obstacle
    monkeypatch.setattr(engine_check, "runs_on_accelerators", lambda kind, given: False)
    for made in (served, by_default):
        (obstacle,) = Exactness.of(made).obstacles
        assert obstacle.startswith("rollout.engine.dtype is bfloat16")
