"""Placement policies: every device has a role in every phase, and the decision can be kept as a row."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.placement.policy import Colocate, Telemetry


@given(devices=st.integers(1, 16), instances=st.integers(1, 16), ranks=st.integers(1, 16), iteration=st.integers(1, 9))
def test_colocate_gives_every_phase_all_devices(devices, instances, ranks, iteration):
    decision = Colocate().plan(Telemetry(iteration, devices, instances, ranks))
    assert set(decision.roles) == {"collect", "learn"}
    assert all(len(roles) == devices for roles in decision.roles.values())
    rollout = {f"rollout-{i}" for i in range(min(devices, instances))}
    trainer = {f"trainer-{i}" for i in range(min(devices, ranks))}
    assert (set(decision.roles["collect"]), set(decision.roles["learn"])) == (rollout, trainer)


def test_a_decision_says_how_much_why_and_what_it_expects():
    seconds = {"collect": 2.0, "learn": 1.0}
    decision = Colocate().plan(Telemetry(3, devices=2, rollout_instances=2, trainer_ranks=2, seconds=seconds))
    assert decision.mode == "colocate"
    assert decision.prediction == seconds
    assert decision.reason.startswith(
        "colocate: 2 devices serve rollout while experience is made and the trainer while"
    )
    assert json.loads(json.dumps(asdict(decision)))["roles"]["learn"] == ["trainer-0", "trainer-1"]


def test_nothing_measured_nothing_predicted():
    assert Colocate().plan(Telemetry(1, 2, 2, 2)).prediction == {}


@pytest.mark.parametrize("iteration", [1, 50])
def test_the_same_telemetry_is_the_same_decision(iteration):
    telemetry = Telemetry(iteration, 4, 2, 2, {"collect": 1.0})
    assert Colocate().plan(telemetry) == Colocate().plan(telemetry)
