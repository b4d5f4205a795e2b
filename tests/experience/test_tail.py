"""A tail ends an iteration at a token: nothing is dropped, lengths learnt from are those drawn, and rounds decide nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.spec.trees import ROOT, spec
from yatt_core.experience.slicing import (
    DrawnGroup,
    LearntLengths,
    RoundOutcome,
    RoundPlan,
    SliceRule,
    Slicing,
    StartedGroup,
    slicing_metrics,
    thrown_away,
    wave_plan_of,
)
from yatt_core.protocols.receipts import PromptRef, ShardPlace

SAMPLES = 2
ITERATIONS = 7

Learnt = list[tuple[int, ...]]
"""Ordinals of the groups that each iteration learns from, in order."""


@dataclasses.dataclass
class TailRun:
    """A run whose responses have given lengths, if they are drawn far enough.

    sealed: what each response had when it was sealed last.
    stale: iterations between the start of each group that was learnt from and the one that learnt from it.
    """

    rule: SliceRule
    lengths: Sequence[int]
    carried: tuple[StartedGroup, ...] = ()
    ordinal: int = 0
    sealed: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    learnt: list[tuple[StartedGroup, ...]] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)
    stale: list[int] = dataclasses.field(default_factory=list)
    wasted: int = 0
    so_far: LearntLengths = dataclasses.field(default_factory=LearntLengths)
    bias: list[float] = dataclasses.field(default_factory=list)
    samples: int = SAMPLES

    def length(self, ordinal: int, sample: int) -> int:
        return self.lengths[(ordinal * self.samples + sample) % len(self.lengths)]

    def draw(self, iteration: int, plan: RoundPlan) -> dict[int, DrawnGroup]:
        found = {}
        for group, most in zip(plan.groups, plan.tokens, strict=True):
            assert most == self.rule.tokens
            ordinal = group.ref.ordinal
            new = []
            for sample in range(self.samples):
                before = min(self.sealed.get((ordinal, sample), 0), group.kept or 0)
                after = min(self.length(ordinal, sample), before + most)
                new.append(after - before)
                self.sealed[ordinal, sample] = after
            now = tuple(self.sealed[ordinal, sample] for sample in range(self.samples))
            ended = all(self.length(ordinal, sample) == each for sample, each in enumerate(now))
            found[ordinal] = DrawnGroup(ShardPlace(iteration, plan.number, 0), max(new) if ended else 0, True, now)
        return found

    def next(self, iteration: int) -> None:
        slicing = Slicing(self.rule, iteration, self.carried)
        while not slicing.finished:
            new = [PromptRef(self.ordinal + i, 0, self.ordinal + i) for i in range(slicing.wanted)]
            self.ordinal += len(new)
            plan = RoundPlan.from_json(slicing.plan(new).to_json())
            assert wave_plan_of(plan, slicing).shards <= self.rule.shards
            outcome = RoundOutcome.from_json(slicing.settle(plan, self.draw(iteration, plan)).to_json())
            slicing = slicing.after(plan, outcome)
        self.wasted += thrown_away(slicing)
        self.carried = tuple(StartedGroup.from_json(group.to_json()) for group in slicing.carried)
        self.learnt.append(slicing.learnt)
        self.stale += [iteration - group.iteration for group in slicing.learnt]
        self.so_far = self.so_far.after(slicing.learnt)
        self.bias.append(self.so_far.bias(self.carried))
        assert slicing_metrics(slicing)["tail/thrown_away_tokens"] == thrown_away(slicing) >= 0

    @property
    def ordinals(self) -> Learnt:
        return [tuple(group.ref.ordinal for group in groups) for groups in self.learnt]


def length_of(lengths: Sequence[int], ordinal: int, sample: int) -> int:
    return lengths[(ordinal * SAMPLES + sample) % len(lengths)]


def rule_of(prompts: int, tokens: int, most: int, in_flight: int) -> SliceRule:
    return SliceRule(
        prompts=prompts,
        tokens=tokens,
        most=most,
        in_flight=in_flight,
        shards=3,
        iterations=ITERATIONS,
        span=most - 1 + (in_flight - 1) // prompts,
        cuts=True,
    )


def token_by_token(rule: SliceRule, lengths: Sequence[int]) -> Learnt:
    """Returns what is learnt from if all responses draw one token after another: the definition of a tail, without rounds."""
    drawn: dict[int, int] = {}
    begun: dict[int, int] = {}
    complete: list[int] = []
    learnt = []
    ordinal = 0
    for iteration in range(1, ITERATIONS + 1):
        room = min(rule.in_flight, (ITERATIONS - iteration + 1) * rule.prompts)

        first = iteration - rule.most + 1
        if len(complete) < rule.prompts or any(begun[each] <= first for each in drawn):
            while len(drawn) + len(complete) < room:
                drawn[ordinal] = 0
                begun[ordinal] = iteration
                ordinal += 1
        while len(complete) < rule.prompts or any(begun[each] <= first for each in drawn):
            for each in sorted(drawn):
                drawn[each] += 1
                if drawn[each] >= max(length_of(lengths, each, sample) for sample in range(SAMPLES)):
                    del drawn[each]
                    complete.append(each)
        learnt.append(tuple(complete[: rule.prompts]))
        complete = complete[rule.prompts :]
    return learnt


runs = st.builds(
    lambda prompts, tokens, most, more, lengths: TailRun(rule_of(prompts, tokens, most, prompts + more), lengths),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(2, 5),
    st.integers(1, 8),
    st.lists(st.integers(1, 90), min_size=1, max_size=40),
)


@settings(max_examples=examples(80), deadline=None)
@given(runs)
def test_it_learns_from_the_groups_that_are_complete_first_token_by_token(run: TailRun) -> None:
    """Also the property that how far engines draw at a time decides nothing."""
    for iteration in range(1, ITERATIONS + 1):
        run.next(iteration)
    assert run.ordinals == token_by_token(run.rule, run.lengths)


@settings(max_examples=examples(60), deadline=None)
@given(runs)
def test_nothing_is_dropped_and_the_lengths_learnt_from_are_those_drawn(run: TailRun) -> None:
    for iteration in range(1, ITERATIONS + 1):
        run.next(iteration)
    assert [len(groups) for groups in run.learnt] == [run.rule.prompts] * ITERATIONS
    assert sorted(ordinal for groups in run.ordinals for ordinal in groups) == list(range(run.ordinal))
    assert run.carried == ()
    learnt = {group.ref.ordinal: group.lengths for groups in run.learnt for group in groups}
    for ordinal, lengths in learnt.items():
        assert lengths == tuple(length_of(run.lengths, ordinal, sample) for sample in range(SAMPLES))
    assert max(run.stale) <= run.rule.span
    assert run.bias[-1] == 1.0, "in the end all that was begun is learnt from"


def test_the_iteration_ends_at_the_token_of_the_last_group_that_it_needs() -> None:
    run = TailRun(rule_of(prompts=2, tokens=16, most=3, in_flight=3), lengths=[3, 5, 40, 4, 9, 9, 2, 2])
    run.next(1)
    assert run.ordinals == [(0, 2)]
    (going,) = run.carried
    assert (going.ref.ordinal, going.kept, going.lengths, going.completed) == (1, 9, (9, 4), None)
    assert run.wasted == 7, "of the sixteen tokens of the round the long response keeps nine"
    assert run.bias == [pytest.approx((5 + 3 + 9 + 9) / 4 / ((5 + 3 + 9 + 9 + 9 + 4) / 6))]


def test_a_group_that_completed_behind_the_end_goes_on_again() -> None:
    run = TailRun(rule_of(prompts=1, tokens=16, most=3, in_flight=2), lengths=[4, 4, 5, 2])
    run.next(1)
    (going,) = run.carried
    assert (going.kept, going.lengths, going.completed) == (4, (4, 2), None)
    assert run.wasted == 1
    run.next(2)
    assert run.ordinals == [(0,), (1,)]


def test_groups_that_complete_at_the_same_token_are_learnt_from_in_the_order_of_starting() -> None:
    run = TailRun(rule_of(prompts=2, tokens=4, most=3, in_flight=5), lengths=[6])
    for iteration in range(1, ITERATIONS + 1):
        run.next(iteration)
    assert run.ordinals == [(2 * i, 2 * i + 1) for i in range(ITERATIONS)]
    assert run.wasted == 0, "what waits is whole"


def test_an_iteration_that_begins_with_enough_complete_groups_draws_nothing() -> None:
    slicing = Slicing(
        rule=rule_of(prompts=1, tokens=4, most=9, in_flight=3),
        iteration=2,
        carried=(
            StartedGroup(PromptRef(0, 0, 0), 1, ShardPlace(1, 0, 0), (1, 0, 3), lengths=(3, 3), kept=4),
            StartedGroup(PromptRef(1, 0, 1), 1, ShardPlace(1, 0, 0), lengths=(3, 3), kept=3),
        ),
    )
    assert slicing.wanted == 0
    plan = slicing.plan([])
    assert plan.groups == ()
    after = slicing.after(plan, slicing.settle(plan, {}))
    assert [group.ref.ordinal for group in after.learnt] == [0]
    assert after.carried == slicing.carried[1:]


def test_the_rule_of_a_spec() -> None:
    made = spec(rollout__tail={"factor": 1.5, "step_tokens": 7, "max_iterations": 3}, data__prompts_per_iteration=5)
    rule = SliceRule.of(made)
    assert rule is not None and rule.cuts
    assert (rule.tokens, rule.most, rule.in_flight, rule.span) == (7, 3, 8, 2 + 1)
    assert made.sliced_by == "rollout.tail"
    assert spec(rollout__tail={"factor": 1.1}, data__prompts_per_iteration=10).groups_in_flight == 11


def test_overdispatch_is_a_tail() -> None:
    made = spec(dynamic_sampling={"kind": "all", "overdispatch": {"factor": 1.5}}, data__prompts_per_iteration=4)
    named = spec(rollout__tail={"factor": 1.5}, data__prompts_per_iteration=4)
    assert SliceRule.of(made) == SliceRule.of(named) is not None
    assert made.is_exact and not made.samples_dynamically
    assert made.sliced_by == "dynamic_sampling.overdispatch"


def test_the_documentation_says_how_large_the_bias_of_lengths_is() -> None:
    found = []
    for seed in range(4):
        lengths = np.random.default_rng(seed).lognormal(np.log(64), 1.0, 40 * 64).astype(int) + 1
        rule = dataclasses.replace(rule_of(prompts=32, tokens=64, most=4, in_flight=40), iterations=30)
        run = TailRun(rule, lengths.tolist(), samples=8)
        for iteration in range(1, 11):
            run.next(iteration)
        found.append((run.bias[0], run.bias[9]))
    first, tenth = np.mean(found, axis=0)
    text = " ".join((ROOT / "docs" / "configuration.md").read_text().split())
    assert f"it is {first:.2f} after the first iteration and {tenth:.2f} after ten" in text
