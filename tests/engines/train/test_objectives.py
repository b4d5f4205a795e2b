"""Every objective against its published formula, written here in plain float64 Python, on random ragged batches.

The model is a table with a log-probability for each response token, so that gradients can be compared with finite
differences token by token. Its batches are divided over 1, 2 and 4 ranks (threads that sum over a barrier) and over
micro-batches, and the head hands out the tokens in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.train.tables import Gradients, Table, ThreadCollective, on_threads
from yatt_core.engines.train.model.forward import Float32
from yatt_core.engines.train.objectives.registry import objective_of
from yatt_core.engines.train.steps.objective_learner import ObjectiveLearner, ObjectiveSums, preference_metrics
from yatt_core.engines.train.steps.plan import PlanShape, plan_steps
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.objective import (
    DpoObjective,
    KtoObjective,
    ObjectiveSpec,
    RewardModelObjective,
    SftObjective,
    SimpoObjective,
)
from yatt_core.wire.ragged import offsets_of

Tokens = list[list[float]]
"""The counted values of each response."""


# -- the formulas -----------------------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def minus_log_sigmoid(x: float) -> float:
    return math.log1p(math.exp(-x)) if x >= 0 else -x + math.log1p(math.exp(x))


def sft(_: ObjectiveSpec, policy: Tokens, reference: Tokens, labels: Sequence[float]) -> float:
    tokens = sum(len(one) for one in policy)
    return -sum(map(sum, policy)) / max(tokens, 1)


def of_pairs(policy: Tokens, reference: Tokens, labels: Sequence[float], each: Callable[[int, int], float]) -> float:
    pairs = [(2 * i, 2 * i + 1) for i in range(len(policy) // 2) if labels[2 * i] != labels[2 * i + 1]]
    ordered = [(a, b) if labels[a] > labels[b] else (b, a) for a, b in pairs]
    return sum(each(*pair) for pair in ordered) / max(len(ordered), 1)


def dpo(spec: Any, policy: Tokens, reference: Tokens, labels: Sequence[float]) -> float:
    def each(best: int, worst: int) -> float:
        ratios = [sum(policy[i]) - sum(reference[i]) for i in (best, worst)]
        h = spec.beta * (ratios[0] - ratios[1])
        s = spec.label_smoothing
        return (1 - s) * minus_log_sigmoid(h) + s * minus_log_sigmoid(-h)

    return of_pairs(policy, reference, labels, each)


def simpo(spec: Any, policy: Tokens, reference: Tokens, labels: Sequence[float]) -> float:
    def each(best: int, worst: int) -> float:
        rewards = [spec.beta * sum(policy[i]) / max(len(policy[i]), 1) for i in (best, worst)]
        return minus_log_sigmoid(rewards[0] - rewards[1] - spec.gamma)

    return of_pairs(policy, reference, labels, each)


def reward_model(spec: Any, policy: Tokens, reference: Tokens, labels: Sequence[float]) -> float:
    return of_pairs(policy, reference, labels, lambda a, b: minus_log_sigmoid(sum(policy[a]) - sum(policy[b])))


def kto_divergence(policy: Tokens, reference: Tokens) -> float:
    others = [sum(policy[i]) - sum(reference[i]) for i in range(1, len(policy), 2)]
    return max(0.0, sum(others) / len(others))


def kto(spec: Any, policy: Tokens, reference: Tokens, labels: Sequence[float], divergence: float) -> float:
    total = 0.0
    for i in range(0, len(policy), 2):
        value = spec.beta * (sum(policy[i]) - sum(reference[i]) - divergence)
        gain = spec.desirable_weight * (1 - sigmoid(value))
        loss = spec.undesirable_weight * (1 - sigmoid(-value))
        total += gain if labels[i] > 0 else loss
    return total / (len(policy) // 2)


FORMULAS = {"sft": sft, "dpo": dpo, "simpo": simpo, "reward_model": reward_model}


def formula_of(
    spec: ObjectiveSpec, policy: Tokens, reference: Tokens, labels: Sequence[float]
) -> Callable[[Tokens], float]:
    """Returns the loss as a function of the policy's values; KTO's divergence has no gradient."""
    if spec.kind == "kto":
        divergence = kto_divergence(policy, reference)
        return lambda values: kto(spec, values, reference, labels, divergence)
    return lambda values: FORMULAS[spec.kind](spec, values, reference, labels)


@dataclass(frozen=True)
class Case:
    """A batch, the policy's and the reference's values of its response tokens."""

    batch: ExperienceBatch
    policy: Float32
    reference: Float32

    def counted(self, values: np.ndarray[Any, Any]) -> Tokens:
        bounds = zip(self.batch.response_offsets[:-1], self.batch.response_offsets[1:], strict=True)
        return [
            [float(v) for v, on in zip(values[a:b], self.batch.loss_mask[a:b], strict=True) if on] for a, b in bounds
        ]


def learned(
    case: Case, spec: ObjectiveSpec, ranks: int, budget: int, even: bool = False
) -> list[tuple[ObjectiveSums, np.ndarray[Any, Any]]]:
    """Returns each rank's sums and gradients of a step over the whole batch."""
    shape = PlanShape(ranks, budget, 1, 1, even=even)
    (step,) = plan_steps(case.batch.lengths, case.batch.group_offsets, shape, 0)

    def one(collective: ThreadCollective) -> tuple[ObjectiveSums, np.ndarray[Any, Any]]:
        table = Table(case.policy)
        learner = ObjectiveLearner(objective_of(spec), table, Gradients(table), collective, shape)
        sums = learner.gradients(case.batch, case.reference, step)
        assert table.values.grad is not None
        return sums, table.values.grad.numpy()

    return on_threads(ranks, one)


def differences(case: Case, formula: Callable[[Tokens], float]) -> np.ndarray[Any, Any]:
    """Returns the gradient of a formula at each response token, by central differences; 0 where a token is masked."""
    found = np.zeros(len(case.policy))
    width = 1e-5
    for place in np.flatnonzero(case.batch.loss_mask):
        sides = []
        for sign in (1, -1):
            moved = case.policy.astype(np.float64)
            moved[place] += sign * width
            sides.append(formula(case.counted(moved)))
        found[place] = (sides[0] - sides[1]) / (2 * width)
    return found


def check(case: Case, spec: ObjectiveSpec, ranks: int, budget: int, even: bool = False) -> ObjectiveSums:
    labels = case.batch.rewards.tolist()
    formula = formula_of(spec, case.counted(case.policy), case.counted(case.reference), labels)
    results = learned(case, spec, ranks, budget, even)
    sums, gradient = results[0]
    assert all(other == sums and (values == gradient).all() for other, values in results)
    assert sums.loss == pytest.approx(formula(case.counted(case.policy)), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradient, differences(case, formula), rtol=1e-5, atol=1e-8)
    return sums


def make_case(
    lengths: Sequence[int], masks: Sequence[bool], policy: Sequence[float], reference: Sequence[float],
    rewards: Sequence[float], group: int,
) -> Case:  # fmt: skip
    count = len(lengths)
    tokens = sum(lengths)
    numbers = np.arange(count)
    return Case(
        ExperienceBatch(
            ordinals=numbers // group,
            samples=(numbers % group).astype(np.int32),
            prompt_tokens=np.ones(count, dtype=np.int32),
            prompt_offsets=np.arange(count + 1),
            response_tokens=np.ones(tokens, dtype=np.int32),
            response_offsets=offsets_of(np.array(lengths, dtype=np.int64)),
            log_probs_sampler=np.zeros(tokens, dtype=np.float32),
            loss_mask=np.array(masks, dtype=np.bool_),
            rewards=np.array(rewards, dtype=np.float64),
            reward_parts={},
            correct=np.zeros(count, dtype=np.bool_),
            truncated=np.zeros(count, dtype=np.bool_),
            weight_versions=np.zeros(count, dtype=np.int32),
        ),
        np.array(policy, dtype=np.float32),
        np.array(reference, dtype=np.float32),
    )


@st.composite
def cases(draw: Callable[..., Any], group: int) -> Case:
    count = group * draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(0, 7), min_size=count, max_size=count))
    tokens = sum(lengths)

    def column(values: st.SearchStrategy[Any], size: int) -> list[Any]:
        found: list[Any] = draw(st.lists(values, min_size=size, max_size=size))
        return found

    log_probs = st.floats(-12, 0, width=32)
    rewards = column(st.sampled_from([0.0, 1.0]), count)
    return make_case(
        lengths, column(st.booleans(), tokens), column(log_probs, tokens), column(log_probs, tokens), rewards, group
    )


SPECS = [
    SftObjective(),
    DpoObjective(beta=0.3),
    DpoObjective(beta=0.1, label_smoothing=0.2),
    SimpoObjective(),
    KtoObjective(beta=0.2, desirable_weight=1.3, undesirable_weight=0.7),
    RewardModelObjective(),
]
IDS = ["sft", "dpo", "cdpo", "simpo", "kto", "reward_model"]


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
@settings(max_examples=6, deadline=None)
@given(data=st.data(), ranks=st.sampled_from([1, 2, 4]), budget=st.integers(8, 40), even=st.booleans())
def test_loss_and_gradient(spec: ObjectiveSpec, data: Any, ranks: int, budget: int, even: bool) -> None:
    check(data.draw(cases(1 if spec.kind == "sft" else 2)), spec, ranks, budget, even)


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
@pytest.mark.parametrize("offset", [0.0, 40.0], ids=["near", "huge ratios"])
def test_edges(spec: ObjectiveSpec, offset: float) -> None:
    """One response has a single token, one has all of its tokens masked, one is empty, one is cut: its tail is masked."""
    lengths = [1, 3, 0, 4]
    group = 1 if spec.kind == "sft" else 2
    masks = [True, False, False, False, True, True, True, False]
    policy = [-1.0, -2.0, -0.5, -3.0, -1.5 - offset, -0.25, -4.0, -9.0]
    reference = [-1.0 - offset, -1.0, -1.0, -1.0, -2.0, -0.5, -3.0, -1.0]
    check(make_case(lengths, masks, policy, reference, [1.0, 0.0, 0.0, 1.0], group), spec, 2, 8)


@pytest.mark.parametrize("spec", SPECS[1:4] + SPECS[5:], ids=IDS[1:4] + IDS[5:])
def test_equal_rewards_teach_nothing(spec: ObjectiveSpec) -> None:
    case = make_case([2, 2], [True] * 4, [-1.0, -2.0, -3.0, -4.0], [-2.0] * 4, [0.5, 0.5], 2)
    sums, gradient = learned(case, spec, 1, 8)[0]
    assert (sums.loss, sums.groups) == (0.0, 0)
    assert not gradient.any()


def test_the_sides_of_pairs_are_told_apart() -> None:
    """Two pairs of one token each: the reward of a side is beta times its log-ratio, and the margin their difference."""
    case = make_case([1] * 4, [True] * 4, [-1.0, -2.0, -3.0, -4.0], [-1.5, -1.0, -1.0, -1.0], [1.0, 0.0, 0.0, 1.0], 2)
    sums = check(case, DpoObjective(beta=0.5), 1, 100)
    found = preference_metrics([sums])
    assert found["preference/chosen_log_prob"] == pytest.approx((-1.0 - 4.0) / 2)
    assert found["preference/rejected_log_prob"] == pytest.approx((-2.0 - 3.0) / 2)
    assert found["preference/chosen_reward"] == pytest.approx(0.5 * (0.5 - 3.0) / 2)
    assert found["preference/rejected_reward"] == pytest.approx(0.5 * (-1.0 - 2.0) / 2)
    difference = found["preference/chosen_reward"] - found["preference/rejected_reward"]
    assert found["preference/margin"] == pytest.approx(difference)
    scalar = preference_metrics([check(case, RewardModelObjective(), 1, 100)])
    assert scalar["preference/chosen_reward"] == pytest.approx(-2.5) and "preference/chosen_log_prob" not in scalar
    assert preference_metrics([check(case, KtoObjective(), 1, 100)]).keys() == {
        "preference/accuracy",
        "preference/margin",
    }


def test_agreement_counts_ties_half() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    case = make_case([1] * 6, [True] * 6, [-1.0, -2.0, -1.0, -2.0, -3.0, -3.0], [0.0] * 6, rewards, 2)
    sums = learned(case, DpoObjective(), 2, 8)[0][0]
    assert (sums.groups, sums.agreed) == (3, 1.5)
