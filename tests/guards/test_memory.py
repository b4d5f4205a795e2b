"""The guard of creeping memory: what creeps raises an alarm; starts, restarts, large batches and noise do not."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.guards.findings import Finding, MetricValue
from yatt_core.guards.judging import GuardEvaluator, History
from yatt_core.guards.memory import CreepingMemoryRule, memory_metric
from yatt_core.spec.sections.guards import CreepingMemoryGuard, GuardsSpec

GUARD = CreepingMemoryGuard()
RULE = CreepingMemoryRule(GUARD, ("driver", "trainer-0", "rollout-0"))
HOST = memory_metric("trainer-0", "host_megabytes")
DEVICE = memory_metric("rollout-0", "device_megabytes")
QUIET = ("start", "restart", "level", "peaks", "saturates", "slow")


def ever(values: Sequence[float], metric: str = HOST) -> Finding | None:
    """Returns the first finding after any of the iterations, as a run would have raised it."""
    for number in range(1, len(values) + 1):
        seen = tuple(MetricValue(step, value) for step, value in enumerate(values[:number], 1))[-RULE.depth :]
        found = RULE.judge({each: seen if each == metric else () for each in RULE.metrics}, -1)
        if found is not None:
            return found
    return None


def usual(kind: str, chance: random.Random) -> list[float]:
    """Returns memory of 300 iterations, in megabytes, that is no creep."""
    noise = [chance.gauss(0.0, 150.0) for _ in range(300)]
    shapes = {
        "start": [8000.0 if number > 4 else 500.0 + 1500.0 * number for number in range(300)],
        "restart": [8000.0 if not 150 <= number < 156 else 900.0 for number in range(300)],
        "level": [8000.0] * 150 + [11000.0] * 150,
        "peaks": [8000.0 + (6000.0 if number % 10 == 0 else 0.0) for number in range(300)],
        "saturates": [9000.0 - 4000.0 * math.exp(-number / 12) for number in range(300)],
        "slow": [8000.0 + number for number in range(300)],
    }
    return [value + each for value, each in zip(shapes[kind], noise, strict=True)]


@settings(max_examples=examples(40))
@given(st.sampled_from(QUIET), st.integers(0, 1000))
def test_what_is_usual_raises_no_alarm(kind: str, seed: int) -> None:
    assert ever(usual(kind, random.Random(seed))) is None


@given(st.floats(40.0, 500.0), st.integers(0, 1000), st.sampled_from([HOST, DEVICE]))
def test_a_leak_is_found_within_two_windows(slope: float, seed: int, metric: str) -> None:
    """Also below noise, and in a process that frees a part of it each ten iterations."""
    chance = random.Random(seed)
    values = [
        4000.0 + slope * number + chance.gauss(0.0, 100.0) - 5 * slope * (number % 10 == 0) for number in range(100)
    ]
    found = ever(values, metric)
    assert found is not None and found.evidence["metric"] == metric
    assert found.evidence["slope"] == pytest.approx(slope, rel=0.5)
    assert f"{metric} has grown by " in found.text


def test_a_small_process_may_double() -> None:
    assert ever([100.0 + 4 * number for number in range(200)]) is None, "less than 512 MB"
    assert ever([100.0 + 12 * number for number in range(200)]) is not None


def test_an_alarm_is_about_new_values_and_counts_the_other_processes() -> None:
    judge = GuardEvaluator(GuardsSpec(), processes=RULE.processes)
    history = History.of(judge.rules)
    since: dict[str, int] = {}
    alarms = []
    for number in range(1, 131):
        values = {HOST: 4000.0 + 100 * number, memory_metric("driver", "host_megabytes"): 900.0 + 30 * number}
        history = history.extended(number, values)
        judged = judge.judge(history, number, since)
        since = dict(judged.since)
        alarms += [(number, alarm) for alarm in judged.alarms]
    assert [number for number, _ in alarms] == [50, 100]
    assert {alarm.rule for _, alarm in alarms} == {"creeping_memory"}
    assert alarms[0][1].finding.evidence["others"] == [memory_metric("driver", "host_megabytes")]


def test_a_process_that_is_gone_is_not_judged() -> None:
    gone = tuple(MetricValue(number, 4000.0 + 100 * number) for number in range(1, 51))
    alive = tuple(MetricValue(number, 4000.0) for number in range(40, 90))
    series = dict.fromkeys(RULE.metrics, ()) | {HOST: gone, DEVICE: alive}
    assert RULE.judge(series, -1) is None
