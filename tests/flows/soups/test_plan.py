"""The steps of a soup, in order, from facts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flows.soups.outcome import hypervolume_ratio, measured_soups
from flows.soups.plan import (
    REWARDED,
    SEARCH,
    SOUP,
    Choose,
    Measure,
    SoupFacts,
    SoupMember,
    SoupPlan,
    Step,
    Supervise,
    Train,
)
from flows.soups.spec import parse_soup
from tests.flows.soups.support import SOUP as TREE


def plan_of(**changes: Any) -> SoupPlan:
    return SoupPlan(parse_soup({**TREE, **changes}, "soup"), 2, 10)


def done(plan: SoupPlan, facts: SoupFacts, step: Step, better: float = 0.8) -> SoupFacts:
    """Returns the facts after a step; models of the beta `better` have the largest rewards."""
    match step:
        case Supervise():
            return replace(facts, supervised=0)
        case Train(members, until):
            return replace(facts, reached={**facts.reached, **dict.fromkeys(members, until)})
        case Measure(points, _):
            found = {
                key: tuple(2.0 * weight + (key.beta == better) for weight in plan.grid.preferences[key.preference])
                for key in points
            }
            return replace(facts, points={**facts.points, **found})
        case Choose(beta, _):
            return replace(facts, chosen=beta)


def steps_of(plan: SoupPlan, better: float = 0.8) -> tuple[list[Step], SoupFacts]:
    facts = SoupFacts()
    steps = list[Step]()
    while (step := plan.next_step(facts)) is not None:
        steps.append(step)
        assert len(steps) < 20
        facts = done(plan, facts, step, better)
    return steps, facts


@pytest.mark.parametrize("better", [0.6, 0.8])
def test_only_the_backbones_of_the_better_beta_are_trained_to_the_end(better: float) -> None:
    plan = plan_of()
    steps, facts = steps_of(plan, better)
    searched = tuple(SoupMember(beta, objective) for beta in (0.6, 0.8) for objective in (0, 1))
    trained = (SoupMember(better, 0), SoupMember(better, 1), SoupMember(1.0, 0), SoupMember(1.0, 1))
    assert steps[:2] == [Supervise(), Train(searched, 2)]
    assert [(step.points[0].stage, step.points[0].beta, step.iteration) for step in steps if isinstance(step, Measure)] == [
        (SEARCH, 0.6, 2), (SEARCH, 0.8, 2), (SOUP, better, 10), (REWARDED, 1.0, 10),
    ]  # fmt: skip
    (choice,) = [step for step in steps if isinstance(step, Choose)]
    assert choice.beta == better and choice.hypervolumes[better] == max(choice.hypervolumes.values())
    assert [step for step in steps if isinstance(step, Train)][1] == Train(trained, 10)
    assert facts.chosen == better


def test_a_single_beta_needs_no_search_and_rewarded_soup_can_be_left_out() -> None:
    steps, _ = steps_of(plan_of(betas=[0.7], rewarded_soup=False))
    assert [type(step) for step in steps] == [Supervise, Choose, Train, Measure]
    assert steps[2] == Train((SoupMember(0.7, 0), SoupMember(0.7, 1)), 10)


def test_what_is_done_is_not_repeated() -> None:
    plan = plan_of()
    reached = {SoupMember(beta, objective): 2 for beta in (0.6, 0.8) for objective in (0, 1)}
    keys = plan.keys(SEARCH, 0.6)
    facts = SoupFacts(0, reached, {keys[0]: (1.0, 1.0), keys[2]: (1.0, 1.0)})
    assert plan.next_step(facts) == Measure((keys[1],), 2)
    short = replace(facts, reached={**reached, SoupMember(0.8, 1): 1})
    assert plan.next_step(short) == Train((SoupMember(0.8, 1),), 2)


def test_equal_hypervolumes_choose_the_smaller_beta() -> None:
    steps, _ = steps_of(plan_of(), better=0.0)
    assert [step.beta for step in steps if isinstance(step, Choose)] == [0.6]


def test_the_figures_compare_both_soups_over_the_worst_rewards_of_both() -> None:
    plan = plan_of()
    _, facts = steps_of(plan)
    soup, rewarded = measured_soups(plan, facts)
    assert (soup.stage, soup.beta, rewarded.stage, rewarded.beta) == (SOUP, 0.8, REWARDED, 1.0)
    # Models at (2, 0), (1, 1), (0, 2), and the soup's shifted by (1, 1); the reference is (0, 0).
    assert (soup.hypervolume, rewarded.hypervolume) == (6.0, 1.0)
    assert hypervolume_ratio((soup, rewarded)) == 6.0
    assert soup.kendall_tau == (1.0, 1.0) and soup.mean_tau == 1.0
    assert all(model.on_front for model in soup.models)
    unmeasured = replace(facts, points={key: found for key, found in facts.points.items() if key.stage != REWARDED})
    assert [each.stage for each in measured_soups(plan, unmeasured)] == [SOUP]
