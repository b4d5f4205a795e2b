"""The trainer's devices are lent if that saves more than it costs, by what was measured; decisions repeat from their inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.workloads import small
from yatt_core.placement.actions import JUDGE, ROLLOUT, Action, Intake, Take
from yatt_core.placement.lending import (
    Levelled,
    MeasuredIteration,
    decide_lending,
    lending_again,
    lending_cost,
    lending_to_json,
)
from yatt_core.placement.moments import Moment
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.seen import PoolSeen
from yatt_core.placement.simulation.campaign import setting_of

BUSY = MeasuredIteration(learning_s=2.0, idle_s=6.0, busy=1.0, lent=False)


def test_without_a_measurement_they_are_lent() -> None:
    found = decide_lending(3, 1, None, 9.0)
    assert found.lends and found.gain_s is None and "nothing was measured" in found.reason


@pytest.mark.parametrize(
    ("measured", "cost_s", "gain_s"),
    [
        (BUSY, 1.0, 6.0 * 1 / 4 - 1.0),  # what takes three instances six seconds takes four of them 4.5
        (replace(BUSY, busy=0.5), 0.0, 0.75),
        (replace(BUSY, lent=True), 0.0, 2.0),  # four instances took six seconds; three would take eight
        (replace(BUSY, busy=0.1), 1.0, 0.15 - 1.0),
        (replace(BUSY, idle_s=0.0), 0.1, -0.1),
    ],
)
def test_the_gain_follows_from_what_was_measured(measured: MeasuredIteration, cost_s: float, gain_s: float) -> None:
    found = decide_lending(3, 1, measured, cost_s)
    assert found.gain_s == pytest.approx(gain_s) and found.lends == (gain_s > 0.0)
    assert f"{measured.idle_s:.1f} s" in found.reason and found.reason.startswith(
        "the trainer's devices generate" if found.lends else "the trainer keeps its devices"
    )


@given(
    own=st.integers(1, 9),
    lent=st.integers(1, 9),
    measured=st.none()
    | st.builds(
        MeasuredIteration,
        learning_s=st.floats(0, 99),
        idle_s=st.floats(0, 99),
        busy=st.floats(0, 1),
        lent=st.booleans(),
    ),
    cost_s=st.floats(0, 9),
)
def test_a_decision_repeats_from_its_recorded_inputs(
    own: int, lent: int, measured: MeasuredIteration | None, cost_s: float
) -> None:
    recorded = json.loads(json.dumps(lending_to_json(own, lent, measured, cost_s)))
    assert lending_again(recorded) == decide_lending(own, lent, measured, cost_s)


def test_the_cost_is_becoming_ready_and_reading_what_is_taken_over() -> None:
    setting = setting_of(small())
    few = lending_cost(setting, responses=len(setting.speeds) * 2, tokens=100.0)
    assert few == pytest.approx(setting.switch.role_s + 2 * 50.0 * setting.rollout.per_prompt_token_s)
    many = lending_cost(setting, responses=10**9, tokens=100.0)
    assert many == pytest.approx(
        setting.switch.role_s + setting.rollout.max_concurrent * 50.0 * setting.rollout.per_prompt_token_s
    )
    assert lending_cost(replace(setting, migrates=False), 10**9, 100.0) == setting.switch.role_s


@dataclass
class Seen:
    index: int
    outstanding: int
    role: str = ROLLOUT
    ready: bool = True
    leaving: str = ""
    joining: str = ""
    speed: float = 1.0
    intake: int | None = None


@dataclass
class Pool:
    instances: Sequence[Any]
    waits: int = 0
    now: float = 0.0
    submitted: int = 8
    unrolled: int = 8
    roles: dict[str, int] = field(default_factory=dict)

    def waiting(self, role: str) -> int:
        return self.waits


class Busy:
    def act(self, moment: Moment, pool: PoolSeen) -> list[Action]:
        return [Intake(0, 3)]


def test_a_lent_instance_gets_its_share_of_what_is_in_progress() -> None:
    pool: Any = Pool([Seen(0, 0), Seen(1, 8), Seen(2, 4, role=JUDGE)])
    assert Levelled(Hold()).act(Moment.SWITCHED, pool) == [Take(1, 4)]
    assert Levelled(Hold()).act(Moment.TICK, pool) == [Take(1, 4)]
    assert Levelled(Hold()).act(Moment.WAVE, pool) == []
    assert Levelled(Busy()).act(Moment.TICK, pool) == [Intake(0, 3)]
    kept: Any = Pool([Seen(0, 0, ready=False), Seen(1, 8)])
    assert Levelled(Hold()).act(Moment.TICK, kept) == []
    waiting: Any = Pool([Seen(0, 0), Seen(1, 8)], waits=2)
    assert Levelled(Hold()).act(Moment.TICK, waiting) == [], "what waits goes to it anyway"
