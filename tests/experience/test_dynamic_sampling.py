"""Dynamic sampling as a pure state machine: quotas in prompt order, the average, padding, and met targets."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.trees import VIRTUAL, spec
from yatt_core.errors import DataError
from yatt_core.experience.dynamic_sampling import (
    Sampling,
    SamplingRule,
    WaveGroups,
    WaveOutcome,
    admission_of,
    sampling_metrics,
    shortfall,
)
from yatt_core.protocols.receipts import Admission, GroupFacts

RULE = SamplingRule(64, 16, filters=True, max_waves=4, ratio_cap=10.0, overdraw=1.2, decay=0.9)
SHORT = SamplingRule(3, 4, filters=True, max_waves=2, ratio_cap=10.0, overdraw=1.0, decay=0.5)


def groups_of(first: int, valid: list[bool]) -> WaveGroups:
    ordinals = np.arange(first, first + len(valid))
    return WaveGroups(ordinals, np.array(valid, dtype=bool), np.full(len(valid), 10))


def iterate(rule: SamplingRule, average: float, noise: np.random.Generator, validity: float) -> Sampling:
    """Runs a complete iteration at a constant validity."""
    sampling = Sampling(rule, average)
    first = 0
    while not sampling.finished:
        plan = sampling.plan()
        outcome = sampling.settle(plan, groups_of(first, (noise.random(plan.prompts) < validity).tolist()), plan.shards)
        sampling = sampling.after(outcome)
        first = first + plan.prompts
    return sampling


# -- the formula ------------------------------------------------------------------------------------------------------


def test_waves_follow_the_formula() -> None:
    sampling = Sampling(RULE)
    plan = sampling.plan()
    assert (plan.wave, plan.wanted, plan.prompts, plan.gap) == (0, 77, 77, 64), "ceil(64 x 1 x 1.2)"
    sampling = sampling.after(sampling.settle(plan, groups_of(0, [i % 7 == 0 for i in range(77)]), 16))
    assert sampling.average_now == pytest.approx(0.9 + 0.1 * 7)
    plan = sampling.plan()
    assert (plan.wave, plan.gap, plan.prompts) == (1, 53, math.ceil(53 * 1.6 * 1.2))
    sampling = sampling.after(sampling.settle(plan, groups_of(77, [False] * plan.prompts), 16))
    assert sampling.average_now == pytest.approx(0.9 * 1.6 + 0.1 * 10), "no valid group counts as the cap"


def test_without_a_filter_every_group_is_taken_in_one_wave_and_the_average_stays() -> None:
    sampling = Sampling(SamplingRule.of(spec(**VIRTUAL, data__prompts_per_iteration=5)), 3.5)
    plan = sampling.plan()
    assert (plan.prompts, plan.wanted, plan.shards) == (5, 5, 5)
    after = sampling.after(sampling.settle(plan, groups_of(10, [False] * 5), 5))
    assert after.finished and after.average_now == 3.5 and not shortfall(after)
    assert admission_of(after.outcomes) == Admission((10, 11, 12, 13, 14))


def test_the_surplus_is_dropped_in_prompt_order_and_counted() -> None:
    sampling = Sampling(SHORT, 2.0)
    outcome = sampling.settle(sampling.plan(), groups_of(20, [True, False, True, True, True, False]), 2)
    assert (outcome.admitted, outcome.dropped, outcome.padding, outcome.spare) == ((20, 22, 23), 1, (), ())
    assert outcome.wasted_tokens == 30
    metrics = sampling_metrics(sampling.after(outcome))
    assert (metrics["sampling/waves"], metrics["sampling/drawn_groups"], metrics["sampling/dropped_groups"]) == (
        1,
        6,
        1,
    )
    assert metrics["sampling/valid_fraction"] == pytest.approx(4 / 6)
    assert (metrics["sampling/padded_groups"], metrics["sampling/filled_fraction"]) == (0, 1)


def test_a_shortfall_is_padded_from_the_earliest_prompts_and_reported() -> None:
    sampling = Sampling(SHORT)
    sampling = sampling.after(sampling.settle(sampling.plan(), groups_of(0, [False, True, False]), 3))
    assert not sampling.finished and sampling.gap == 2
    outcome = sampling.settle(sampling.plan(), groups_of(3, [False, True, False, False]), 4)
    assert (outcome.admitted, outcome.padding) == ((4,), (0,))
    sampling = sampling.after(outcome)
    assert admission_of(sampling.outcomes) == Admission((1, 4), (0,))
    assert "only 2 of 3 groups can be learnt from after 2 waves of 7 prompts" in shortfall(sampling)
    assert sampling_metrics(sampling)["sampling/padded_groups"] == 1


def test_overdispatch_draws_more_and_the_rest_counts_as_cut() -> None:
    rule = SamplingRule(8, 10, overdispatch=1.25)
    plan = Sampling(rule).plan()
    assert (plan.wanted, plan.prompts, plan.shards) == (8, 10, 10)
    arrived = WaveGroups(np.array([0, 1, 2, 4, 5, 6, 7, 8, 9]), np.ones(9, dtype=bool), np.full(9, 3))
    outcome = Sampling(rule).settle(plan, arrived, 9)
    assert (outcome.cut, outcome.dropped, outcome.admitted) == (1, 1, (0, 1, 2, 4, 5, 6, 7, 8))
    assert sampling_metrics(Sampling(rule).after(outcome))["sampling/cut_groups"] == 1


# -- samples without a score ------------------------------------------------------------------------------------------

REFILLED = SamplingRule(10, 4, samples=8, least_scored=2, refill_above=0.05, max_waves=3)


def scored_groups(first: int, scored: list[int]) -> WaveGroups:
    """Returns groups of eight responses, of which so many have a score."""
    count = len(scored)
    return WaveGroups(np.arange(first, first + count), np.ones(count, dtype=bool), np.full(count, 8), np.array(scored))


def test_further_prompts_take_the_place_of_samples_without_a_score() -> None:
    sampling = Sampling(REFILLED)
    sampling = sampling.after(sampling.settle(sampling.plan(), scored_groups(0, [6] * 9 + [1]), 4))
    assert not sampling.finished and (sampling.lacking, sampling.gap) == (1, 4), "ceil((80 - 54) / 8)"
    plan = sampling.plan()
    assert (plan.wave, plan.wanted, plan.prompts, plan.gap) == (1, 4, 4, 4)
    sampling = sampling.after(sampling.settle(plan, scored_groups(10, [6, 6, 6, 8]), 4))
    assert sampling.finished and not shortfall(sampling), "80 are wanted, and 80 are there"
    assert admission_of(sampling.outcomes) == Admission((*range(9), *range(10, 14)))


def test_few_samples_without_a_score_are_not_replaced() -> None:
    sampling = Sampling(REFILLED)
    outcome = sampling.settle(sampling.plan(), scored_groups(0, [8] * 9 + [4]), 4)
    assert (outcome.scored, outcome.padding) == (76, ())
    dropped = replace(REFILLED, refill_above=0.1)
    outcome = Sampling(dropped).settle(Sampling(dropped).plan(), scored_groups(0, [8] * 9 + [1]), 4)
    assert (outcome.scored, outcome.padding) == (72, (9,)), "a group without scores is padded, as without a refill"
    assert "only 9 of 10 groups" in shortfall(Sampling(dropped).after(outcome))


def test_a_refill_ends_after_its_waves_and_its_time() -> None:
    sampling = Sampling(REFILLED)
    first = 0
    while not sampling.finished:
        plan = sampling.plan()
        outcome = sampling.settle(plan, scored_groups(first, [2] * plan.prompts), plan.shards)
        sampling = sampling.after(outcome)
        first = first + plan.prompts
    assert [outcome.groups for outcome in sampling.outcomes] == [10, 8, 6], "ceil(60 / 8), ceil(44 / 8)"
    late = Sampling(REFILLED).settle(Sampling(REFILLED).plan(), scored_groups(0, [4] * 10), 4, ends=True)
    assert late.padding == ()


def test_outcomes_of_earlier_versions_have_no_count_of_scores() -> None:
    recorded = Sampling(REFILLED).settle(Sampling(REFILLED).plan(), groups_of(0, [True] * 10), 4)
    assert recorded.scored == 80, "all have one, unless something else is said"
    body = recorded.to_json()
    del body["scored"]
    assert Sampling(REFILLED).after(WaveOutcome.from_json(body)).finished


@pytest.mark.parametrize(
    ("refill", "waves", "above"), [({}, 3, 0.05), ({"above": 0.2, "max_waves": 5}, 5, 0.2), (None, 1, None)]
)
def test_the_rule_of_a_refill(refill: dict[str, float] | None, waves: int, above: float | None) -> None:
    rule = SamplingRule.of(spec(dynamic_sampling={"kind": "all", "refill": refill}, rollout__samples_per_prompt=4))
    assert (rule.max_waves, rule.refill_above, rule.samples, rule.filters) == (waves, above, 4, False)


@given(st.floats(0, 1), st.integers(0, 99))
def test_a_refilled_update_has_the_samples_it_needs_or_all_its_waves(failing: float, seed: int) -> None:
    noise = np.random.default_rng(seed)
    sampling = Sampling(REFILLED)
    first = 0
    while not sampling.finished:
        plan = sampling.plan()
        scored = noise.binomial(8, 1 - failing, plan.prompts).tolist()
        outcome = sampling.settle(plan, scored_groups(first, scored), plan.shards)
        assert outcome == WaveOutcome.from_json(json.loads(json.dumps(outcome.to_json())))
        sampling = sampling.after(outcome)
        first = first + plan.prompts
    learned = sum(outcome.scored or 0 for outcome in sampling.outcomes)
    assert learned >= 76 or len(sampling.outcomes) == REFILLED.max_waves
    assert learned <= 80 + 7, "no more prompts than are needed"
    admission = admission_of(sampling.outcomes)
    assert len(admission.groups) + len(admission.padding) >= REFILLED.target


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_a_group_is_valid_if_its_rewards_differ_by_more_than_rounding() -> None:
    facts = GroupFacts((0.1, 0.3, 0.3, 0.0, -1.0), (0.1, 0.1 + 0.2, 0.3 + 1e-9, 1e-12, 1.0), (4, 5, 6, 7, 8))
    groups = WaveGroups.gather([((7, 8, 9, 10, 11), facts)])
    assert groups.valid.tolist() == [False, False, True, True, True]
    with pytest.raises(DataError, match=r"\b2 prompts\b.*\b5 groups\b"):
        WaveGroups.gather([((7, 8), facts)])


@pytest.mark.parametrize("filters", [False, True])
def test_a_group_with_too_few_scores_is_dropped_and_replaced_or_padded(filters: bool) -> None:
    facts = GroupFacts((0.0,) * 4, (1.0,) * 4, (5,) * 4, (1,) * 4, (4, 1, 2, 0))
    groups = WaveGroups.gather([(range(4), facts)])
    rule = SamplingRule(target=4, shards=2, filters=filters, max_waves=3 if filters else 1, least_scored=2)
    plan = Sampling(rule).plan()
    outcome = Sampling(rule).settle(plan, groups, 2)
    assert outcome.admitted == (0, 2)
    assert outcome.wasted_tokens == 10
    if filters:
        assert outcome.padding is None and Sampling(rule).after(outcome).plan().gap == 2
    else:
        assert outcome.padding == (1, 3)


def test_what_a_group_needs_follows_from_the_algorithm() -> None:
    def least(samples: int, **algorithm: Any) -> int:
        return SamplingRule.of(spec(rollout__samples_per_prompt=samples, algorithm=algorithm)).least_scored

    assert least(8) == 2
    assert least(8, advantage={"kind": "reinforce_plus_plus"}) == 1
    assert least(1, advantage={"kind": "reinforce_plus_plus"}) == 1


def test_facts_about_other_numbers_of_scores_are_refused() -> None:
    whole = GroupFacts((0.0,), (1.0,), (5,))
    told = GroupFacts((0.0,), (1.0,), (5,), (1,), (2,))
    with pytest.raises(DataError, match="2 groups have facts about the scores of 1"):
        WaveGroups.gather([((0,), whole), ((1,), told)])


@given(st.permutations(range(6)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    shards = [((2 * i, 2 * i + 1), GroupFacts((0.0, 0.0), (float(i % 2), 1.0), (i, i + 1))) for i in range(6)]
    settled = Sampling(RULE).settle(Sampling(RULE).plan(), WaveGroups.gather(shards[i] for i in order), 6)
    assert settled == Sampling(RULE).settle(Sampling(RULE).plan(), WaveGroups.gather(shards), 6)


# -- invariants -------------------------------------------------------------------------------------------------------

RULES = st.builds(
    SamplingRule,
    target=st.integers(1, 20),
    shards=st.integers(1, 8),
    filters=st.just(True),
    max_waves=st.integers(1, 6),
    ratio_cap=st.floats(1, 40),
    overdraw=st.floats(1, 2),
    decay=st.floats(0, 0.99),
    overdispatch=st.sampled_from([1.0, 1.25, 2.0]),
    keep=st.none() | st.integers(1, 4),
)


@given(RULES, st.floats(1, 40), st.data())
def test_the_batch_is_always_filled_and_every_group_accounted_for(
    rule: SamplingRule, average: float, data: st.DataObject
) -> None:
    sampling = Sampling(rule, average)
    first = 0
    valid_ordinals = list[int]()
    all_ordinals = list[int]()
    outcomes = []
    while not sampling.finished:
        plan = sampling.plan()
        assert plan.prompts >= plan.wanted >= plan.gap == sampling.gap > 0
        assert 1 <= plan.shards <= rule.shards
        finished = data.draw(st.integers(plan.wanted, plan.prompts))
        noise = np.random.default_rng(data.draw(st.integers(0, 99)))
        chosen = np.sort(noise.choice(plan.prompts, finished, replace=False)) + first
        valid = noise.random(finished) < data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
        outcome = sampling.settle(plan, WaveGroups(chosen, valid, np.ones(finished, dtype=np.int64)), plan.shards)
        assert outcome.groups == outcome.wasted_tokens + len(outcome.admitted), "each group has one token"
        assert outcome == WaveOutcome.from_json(json.loads(json.dumps(outcome.to_json()))), "survives the ledger's JSON"
        outcomes.append(outcome)
        sampling = sampling.after(outcome)
        first = first + plan.prompts
        valid_ordinals += chosen[valid].tolist()
        all_ordinals += chosen.tolist()
        low = min(average, 1.0)
        assert low <= sampling.average_now <= max(average, rule.ratio_cap) * (1 + 1e-9)
    assert len(outcomes) <= rule.max_waves
    admission = admission_of(outcomes)
    assert list(admission.groups) == valid_ordinals[: rule.target], "the first valid ones, in prompt order"
    missing = rule.target - len(admission.groups)
    left = [ordinal for ordinal in all_ordinals if ordinal not in admission.groups]
    assert list(admission.padding) == left[:missing] and len(admission.padding) == missing
    assert sampling == Sampling(rule, average, tuple(outcomes)), "the state is a fold over the recorded outcomes"


# -- how far targets are met ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("validity", "changes"), [(0.1, {}), (0.05, {"max_waves": 64, "ratio_cap": 40.0})], ids=["10 %", "5 %"]
)
def test_the_target_is_met_from_the_fifth_iteration_on(validity: float, changes: dict[str, float]) -> None:
    tree = {**VIRTUAL, "dynamic_sampling": {"kind": "valid_group", **changes}}
    rule = SamplingRule.of(spec(**tree, data__prompts_per_iteration=64))
    filled = []
    for seed in range(50):
        noise = np.random.default_rng(seed)
        average = 1.0
        for iteration in range(1, 31):
            sampling = iterate(rule, average, noise, validity)
            average = sampling.average_now
            metrics = sampling_metrics(sampling)
            admission = admission_of(sampling.outcomes)
            assert len(admission.groups) + len(admission.padding) == 64
            assert metrics["sampling/padded_groups"] == len(admission.padding) == 64 - len(admission.groups)
            assert bool(shortfall(sampling)) == bool(admission.padding)
            if iteration >= 5:
                filled.append(metrics["sampling/filled_fraction"])
    assert statistics.fmean(filled) >= 0.99


def test_a_reward_that_is_never_valid_only_pads() -> None:
    noise = np.random.default_rng(0)
    average = 1.0
    for _ in range(20):
        sampling = iterate(RULE, average, noise, 0.0)
        average = sampling.average_now
        assert len(sampling.outcomes) == 4 and sampling.gap == 64
        assert sum(outcome.groups for outcome in sampling.outcomes) <= 4 * 64 * 10 * 1.2 + 4, "the cap bounds the waste"
        assert len(admission_of(sampling.outcomes).padding) == 64
        assert "only 0 of 64" in shortfall(sampling)


def test_a_wave_of_256_controllers_is_settled_from_their_receipts() -> None:
    """All controllers share one quota: the first valid groups, whichever controller made them."""
    rule = SamplingRule(2048, 256, filters=True, max_waves=4, ratio_cap=10.0, overdraw=1.2, decay=0.9)
    sampling = Sampling(rule, 10.0)
    plan = sampling.plan()
    noise = np.random.default_rng(0)
    highest = (noise.random(plan.prompts) < 0.1).astype(float)
    bounds = [plan.prompts * i // 256 for i in range(257)]
    parts = [range(bounds[i], bounds[i + 1]) for i in noise.permutation(256)]
    shards = [
        (part, GroupFacts((0.0,) * len(part), tuple(highest[part.start : part.stop].tolist()), (1,) * len(part)))
        for part in parts
    ]
    outcome = sampling.settle(plan, WaveGroups.gather(shards), 256)
    assert list(outcome.admitted) == np.flatnonzero(highest)[:2048].tolist()
