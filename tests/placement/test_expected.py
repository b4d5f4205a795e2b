"""Expected workloads for planning: growth is extrapolated, but not noise or other loads; telemetry yields constants."""

from __future__ import annotations

import dataclasses

import pytest

from tests.placement.workloads import small
from yatt_core.placement.actions import JUDGE
from yatt_core.placement.fitting import fitted
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.expected import (
    LOOKS_BACK,
    Size,
    drawn_anew,
    expected_work,
    likened,
    limit_of,
    scaled,
    thinned,
)
from yatt_core.placement.policies.fixed import SplitPool
from yatt_core.placement.simulation.campaign import collect, run_campaign, setting_of
from yatt_core.placement.work import SampleWork, WaveWork

STEADY = {"median": 200.0, "sigma": 0.6, "min": 16, "max": 4096, "rho": 0.4}


def sizes(*tokens: float, error: float = 10.0) -> list[Size]:
    return [Size(count, error) for count in tokens]


def test_growth_is_extrapolated_and_noise_is_not() -> None:
    assert likened(sizes(200, 400, 600, 800)) == pytest.approx([1000 / 800, 1000 / 600, 1000 / 400, 1000 / 250], abs=1)
    assert likened(sizes(200, 400, 600, 800))[0] == pytest.approx(1.25)
    assert likened(sizes(205, 195, 203, 198)) == [1.0] * 4
    assert likened(sizes(800, 600, 400, 200))[0] == 0.5, "never less than half of the last observation"


def test_iterations_of_another_load_are_left_out() -> None:
    assert likened(sizes(3000, 3000, 3000, 1000)) == [1.0]
    assert likened(sizes(3000, 3000, 1000, 1005)) == [1.0, 1.0]
    assert likened(sizes(500, 1000)) == [1.0], "two points do not make a trend"


def test_growing_responses_are_expected_to_grow_further() -> None:
    growing = small(response={**STEADY, "sigma": 0.2, "median": ((0, 200.0), (3, 800.0))}).model_copy(
        update={"iterations": 4}
    )
    past = run_campaign(growing, SplitPool(1)).past
    worlds = expected_work(setting_of(growing), past)
    for (wave,) in worlds:
        mean = sum(sample.response for sample in wave.samples) / len(wave.samples)
        assert mean == pytest.approx(1000, rel=0.15), "200, 400, 600, 800: 1000 is next"


def test_the_number_of_worlds_is_constant() -> None:
    workload = small().model_copy(update={"iterations": LOOKS_BACK + 1})
    past = run_campaign(workload, SplitPool(1)).past
    setting = setting_of(workload)
    for count in range(len(past) + 1):
        worlds = expected_work(setting, past[:count])
        assert len(worlds) == LOOKS_BACK == len({str(world) for world in worlds})
        assert worlds == expected_work(setting, past[:count]), "the same telemetry gives the same worlds"
    assert expected_work(setting, past[:1])[0] == list(past[0].waves)


def test_groups_are_drawn_whole() -> None:
    wave = run_campaign(small(), SplitPool(1)).past[0].waves[0]
    (drawn,) = drawn_anew([wave], 1)
    assert len(drawn.samples) == len(wave.samples) and [s.group for s in drawn.samples][:5] == [0, 0, 0, 0, 1]
    known = {tuple(s.turns for s in wave.samples[start : start + 4]) for start in range(0, 64, 4)}
    assert all(tuple(s.turns for s in drawn.samples[start : start + 4]) in known for start in range(0, 64, 4))


def test_truncated_responses_stay_truncated() -> None:
    """Several samples with the maximum length have reached a limit."""
    assert limit_of([5, 9, 9]) == 9 and limit_of([5, 9, 8]) == float("inf")
    samples = tuple(
        SampleWork(group, True, 10, turns, (), (4, 8)) for group, turns in enumerate([(100,), (60, 40), (30,)])
    )
    (grown,) = scaled([WaveWork(samples, (True,) * 3)], 2.0, 1.5)
    assert [s.turns for s in grown.samples] == [(100,), (60, 40), (60,)]
    assert grown.samples[0].judge == (6, 8)


@pytest.mark.parametrize("judge", [(0,), ()], ids=["reward model", "judge that failed"])
def test_samples_with_an_empty_judgement_can_be_planned(judge: tuple[int, ...]) -> None:
    workload = small()
    setting = setting_of(workload)
    telemetry, *_ = run_campaign(workload, SplitPool(1)).past
    (wave,) = telemetry.waves
    waves = (dataclasses.replace(wave, samples=tuple(dataclasses.replace(s, judge=judge) for s in wave.samples)),)
    past = [dataclasses.replace(telemetry, waves=waves)] * 3
    assert {s.judge for world in expected_work(setting, past) for w in world for s in w.samples} == {judge}
    assert {s.judge for s in scaled(waves, 2.0, 2.0)[0].samples} == {judge}
    plan = Dynamic().plan(setting, past, {})
    again = collect(setting, plan.roles, plan.runtime_policy, waves, None)
    assert again.collect_s > 0 and sum(u.sequence_steps for u in again.usage if u.role == JUDGE) == 0


def test_every_nth_group_represents_all() -> None:
    wave = run_campaign(small(), SplitPool(1)).past[0].waves[0]
    part = thinned(wave, 4)
    assert {sample.group for sample in part.samples} == {0, 4, 8, 12}
    assert len(part.samples) == 16 == len(wave.samples) // 4
    assert thinned(wave, 1) is wave


def test_constants_are_recovered_from_telemetry() -> None:
    workload = small(devices=4)
    setting = setting_of(workload)
    past = run_campaign(workload, SplitPool(1)).past
    found = fitted(dataclasses.replace(setting, rollout=setting.rollout.model_copy(update={"base_s": 1.0})), past)
    for role in ("rollout", "judge"):
        true = getattr(setting, role)
        fit = getattr(found, role)
        assert fit.per_prompt_token_s == pytest.approx(true.per_prompt_token_s)
        assert fit.base_s == pytest.approx(true.base_s, rel=0.02)
        assert fit.max_concurrent == true.max_concurrent
    assert fitted(setting, []).rollout.base_s != setting.rollout.base_s, "without telemetry the constants are unknown"
