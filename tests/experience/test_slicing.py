"""Slices decide by tokens: nothing is dropped, lengths learnt from are those drawn, and staleness keeps its bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from tests.spec.trees import spec
from yatt_core.errors import InfrastructureError
from yatt_core.experience.slicing import (
    DrawnGroup,
    RoundOutcome,
    RoundPlan,
    SliceRule,
    Slicing,
    StartedGroup,
    admission_of_groups,
    require_fresh,
    wave_outcome_of,
    wave_plan_of,
)
from yatt_core.protocols.receipts import PromptRef, ShardPlace

SAMPLES = 2


@dataclasses.dataclass
class DrawnRun:
    """A run whose responses have given lengths.

    drawn: of each response that has been started, its tokens by iteration, in order.
    learnt: the groups that each iteration has learnt from.
    """

    rule: SliceRule
    lengths: Sequence[int]
    unusable: frozenset[int] = frozenset()
    carried: tuple[StartedGroup, ...] = ()
    ordinal: int = 0
    drawn: dict[tuple[int, int], list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    learnt: list[tuple[StartedGroup, ...]] = dataclasses.field(default_factory=list)
    most: int = 0

    def length(self, ordinal: int, sample: int) -> int:
        return self.lengths[(ordinal * SAMPLES + sample) % len(self.lengths)]

    def draw(self, iteration: int, plan: RoundPlan, shards: int) -> Mapping[int, DrawnGroup]:
        found = {}
        for number, (group, most) in enumerate(zip(plan.groups, plan.tokens, strict=True)):
            new = []
            for sample in range(SAMPLES):
                so_far = self.drawn.setdefault((group.ref.ordinal, sample), [])
                left = self.length(group.ref.ordinal, sample) - self.so_far(group.ref.ordinal, sample)
                new.append(left if most is None else min(left, most))
                if new[-1]:
                    so_far.append((iteration, new[-1]))
            ended = all(
                self.so_far(group.ref.ordinal, sample) == self.length(group.ref.ordinal, sample)
                for sample in range(SAMPLES)
            )
            place = ShardPlace(iteration, plan.number, number * shards // len(plan.groups))
            usable = group.ref.ordinal not in self.unusable
            now = tuple(self.so_far(group.ref.ordinal, sample) for sample in range(SAMPLES))
            found[group.ref.ordinal] = DrawnGroup(place, max(new) if ended else 0, usable, now)
        return found

    def so_far(self, ordinal: int, sample: int) -> int:
        return sum(tokens for _, tokens in self.drawn[ordinal, sample])

    def next(self, iteration: int) -> None:
        slicing = Slicing(self.rule, iteration, self.carried)
        while not slicing.finished:
            new = [PromptRef(self.ordinal + i, 0, self.ordinal + i) for i in range(slicing.wanted)]
            self.ordinal += len(new)
            plan = RoundPlan.from_json(slicing.plan(new).to_json())
            self.most = max(self.most, len(slicing.carried) + len(new))
            shards = wave_plan_of(plan, slicing).shards
            outcome = RoundOutcome.from_json(slicing.settle(plan, self.draw(iteration, plan, shards)).to_json())
            slicing = slicing.after(plan, outcome)
        self.carried = tuple(StartedGroup.from_json(group.to_json()) for group in slicing.carried)
        self.learnt.append(slicing.learnt)


def rule_of(prompts: int, tokens: int, most: int, in_flight: int, iterations: int = 9) -> SliceRule:
    return SliceRule(
        prompts=prompts,
        tokens=tokens,
        most=most,
        in_flight=in_flight,
        shards=3,
        iterations=iterations,
        span=most - 1 + (in_flight - 1) // prompts,
    )


runs = st.builds(
    lambda prompts, tokens, most, more, lengths, unusable: DrawnRun(
        rule_of(prompts, tokens, most, prompts + more), lengths, frozenset(unusable)
    ),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 12),
    st.lists(st.integers(1, 90), min_size=1, max_size=40),
    st.sets(st.integers(0, 60), max_size=6),
)


@settings(max_examples=examples(60), deadline=None)
@given(runs)
def test_nothing_is_dropped_and_the_lengths_learnt_from_are_those_drawn(run: DrawnRun) -> None:
    for iteration in range(1, run.rule.iterations + 1):
        run.next(iteration)
    assert [len(groups) for groups in run.learnt] == [run.rule.prompts] * run.rule.iterations
    learnt = [group.ref.ordinal for groups in run.learnt for group in groups]
    assert run.carried == (), "the last iterations take all that is in flight"
    assert sorted(learnt) == list(range(run.ordinal)), "each started group is learnt from once"
    for group in (group for groups in run.learnt for group in groups):
        assert group.lengths == tuple(run.length(group.ref.ordinal, sample) for sample in range(SAMPLES))
    assert run.most <= run.rule.in_flight


@settings(max_examples=examples(60), deadline=None)
@given(runs)
def test_tokens_are_no_older_than_the_bound_and_each_response_draws_in_few_iterations(run: DrawnRun) -> None:
    for iteration in range(1, run.rule.iterations + 1):
        run.next(iteration)
        for group in run.learnt[-1]:
            for sample in range(SAMPLES):
                drawn = sorted({at for at, _ in run.drawn[group.ref.ordinal, sample]})
                assert iteration - drawn[0] <= run.rule.span
                assert drawn[-1] - group.iteration + 1 <= run.rule.most


@settings(max_examples=examples(60), deadline=None)
@given(runs)
def test_a_group_that_completed_earlier_is_learnt_from_earlier(run: DrawnRun) -> None:
    for iteration in range(1, run.rule.iterations + 1):
        run.next(iteration)
        waiting = [group for group in run.carried if group.completed is not None]
        if waiting:
            assert max(group.order for group in run.learnt[-1]) < min(group.order for group in waiting)


def test_a_slice_ends_a_round_and_the_last_one_goes_on_to_the_end() -> None:
    run = DrawnRun(rule_of(prompts=2, tokens=10, most=2, in_flight=4), lengths=[5, 8, 35, 4])
    run.next(1)
    assert run.drawn[1, 0] == [(1, 10)], "three groups of four slices: two short ones are enough"
    assert [group.ref.ordinal for group in run.learnt[0]] == [0, 2]
    run.next(2)
    assert run.drawn[1, 0] == [(1, 10), (2, 25)]


def test_what_has_no_scores_takes_its_place_masked() -> None:
    run = DrawnRun(rule_of(prompts=2, tokens=50, most=1, in_flight=2), lengths=[3], unusable=frozenset({1}))
    run.next(1)
    admission = admission_of_groups(run.learnt[0])
    assert (admission.groups, admission.padding) == ((0,), (1,))
    outcome = RoundOutcome({}, run.learnt[0])
    assert (wave_outcome_of(outcome, 1).admitted, wave_outcome_of(outcome, 1).padding) == ((0,), (1,))


def test_a_group_that_is_too_old_is_never_admitted() -> None:
    group = StartedGroup(PromptRef(7, 0, 7), 2, ShardPlace(3, 0, 0), (3, 0, 5))
    require_fresh([group], iteration=5, bound=3)
    with pytest.raises(InfrastructureError, match="iteration 6 would learn from prompt 7, started in iteration 2"):
        require_fresh([group], iteration=6, bound=3)


def test_the_rule_of_a_spec() -> None:
    assert SliceRule.of(spec()) is None
    made = spec(rollout__slice_tokens=7, rollout__max_slices=3, data__prompts_per_iteration=4)
    rule = SliceRule.of(made)
    assert rule is not None
    assert (rule.tokens, rule.most, rule.in_flight, rule.span) == (7, 3, 8, 2 + 1)
    assert made.version_span == 3
