"""Every method against its published formula from `prepare` to the gradients, on 1, 2 and 4 ranks and in any micro-batches.

The batches are random and ragged, with masked tokens, padding and truncated responses. The trainer's own classes compute
columns, losses and gradients on ranks that are threads; the formulas are in float64 (`published`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.published import Published
from tests.algorithms.ragged import expected
from tests.algorithms.test_advantages import CASES as ADVANTAGES
from tests.algorithms.test_advantages import EPSILON
from tests.algorithms.test_corrections import CORRECTIONS
from tests.algorithms.test_policy_losses import CASES as LOSSES
from tests.algorithms.test_policy_losses import NAMES, clip
from tests.algorithms.trained import TASK, Case, Trained, all_masked, cases, edge_case, trained
from tests.engines.train.support import MAX_NEW_TOKENS, make_spec
from tests.matrix import examples
from yatt_core.algorithms.advantages.registry import AdvantageSpec
from yatt_core.algorithms.corrections.registry import CorrectionSpec
from yatt_core.algorithms.entropy.registry import EntropySpec
from yatt_core.algorithms.losses.registry import LossSpec
from yatt_core.algorithms.moments import RewardMoments, group_moments, merged
from yatt_core.algorithms.shaping.registry import LengthPenaltySpec
from yatt_core.engines.train.steps.plan import PlanShape
from yatt_core.spec.run import RunSpec

RANKS = (1, 2, 4)
EARLIER = np.array([0.0, 1.0, 2.0, 0.0, 1.5])
STATE = {"kl": 0.2, "entropy_bonus": 0.03, "entropy": 0.03}
FOLDER = {"model": {"kind": "folder", "path": "teacher"}}
BASE: dict[str, Any] = {"loss": {"kind": "clip", "clip_high": 0.28}, "epsilon": EPSILON, "epochs": 2}
PARTS = [
    {"name": name, "function": "exact_match", "weight": weight} for name, weight in (("first", 0.7), ("second", 0.3))
]


def _kl(**keys: Any) -> dict[str, Any]:
    return {"kl": {"coefficient": 0.3, **keys}}


METHODS: dict[str, dict[str, Any]] = {
    **{f"loss-{name}": {"loss": loss} for name, (loss, _) in zip(NAMES, LOSSES, strict=True)},
    **{f"advantage-{name}": {"advantage": tree} for name, (tree, _) in ADVANTAGES.items() if name != "gae"},
    "advantage-gae": {"advantage": ADVANTAGES["gae"][0], "critic": {"clip": 0.2}},
    **{f"correction-{one['kind']}-{one['by']}": {"importance_correction": one} for one in CORRECTIONS},
    "off-policy-mask": {"off_policy_mask": {"delta": 0.1}, "loss": {"kind": "gspo", "clip_high": 4e-4}},
    **{f"kl-loss-{kind}": _kl(estimator=kind) for kind in ("k1", "k2", "k3")},
    "kl-unbiased-adaptive": _kl(unbiased=True, adaptive={"target": 0.1}),
    **{f"kl-reward-{kind}": _kl(estimator=kind, where="reward") for kind in ("k1", "k2", "k3")},
    **{
        f"kl-reward-{name}": {**_kl(where="reward", estimator="k2"), "advantage": ADVANTAGES[name][0]}
        for name in ("reinforce_plus_plus", "group_tokens", "gdpo")
    },
    "kl-reward-gae": {**_kl(where="reward"), "advantage": ADVANTAGES["gae"][0], "critic": {"clip": None}},
    "entropy-bonus": {"entropy": {"kind": "bonus", "coefficient": 0.1}},
    "entropy-bonus-sequence-mean": {"entropy": {"kind": "bonus", "coefficient": 0.1}, "aggregation": "sequence_mean"},
    "entropy-adaptive": {"entropy": {"kind": "adaptive"}},
    "entropy-adaptive-fixed-length": {"entropy": {"kind": "adaptive"}, "aggregation": "fixed_length"},
    "entropy-clip-cov": {"entropy": {"kind": "clip_cov", "fraction": 0.2, "low": 0.05, "high": 50.0}},
    "length-overlong": {"length_penalty": {"kind": "overlong", "buffer": 4, "penalty": 2.0}},
    "length-linear": {"length_penalty": {"kind": "linear", "penalty": 0.5}, "advantage": {"kind": "gdpo"}},
    "reward-scaling": {"reward_scaling": "running", "advantage": {"kind": "group_mean"}},
    "distillation": {"distillation": {"teachers": [FOLDER, {**FOLDER, "weight": 3.0}], "coefficient": 0.4}},
    "one-step": {"epochs": 1, "importance_correction": CORRECTIONS[0]},
    "sequence-mean": {"aggregation": "sequence_mean", "mask_truncated": True},
    "fixed-length": {"aggregation": "fixed_length", "mask_truncated": True},
}
FORMULAS = {(loss["kind"], loss.get("divergence", "tv")): formula for loss, formula in LOSSES}


def spec_of(name: str) -> RunSpec:
    return make_spec(algorithm={**BASE, **METHODS[name]}, rewards={"parts": PARTS})


def published(spec: RunSpec, case: Case) -> Published:
    loss = spec.algorithm.loss
    formula = FORMULAS.get((loss.kind, getattr(loss, "divergence", "tv")), clip)
    return Published(spec, case, formula, EARLIER, STATE)


def moments() -> RewardMoments:
    return merged(RewardMoments(), group_moments(EARLIER, np.array([len(EARLIER)])))


def check(name: str, case: Case, shape: PlanShape) -> list[Trained]:
    """Asserts that every rank of every group has the formulas' loss and gradients; returns one rank's of each group."""
    spec = spec_of(name)
    found = []
    formulas = published(spec, case)
    step = formulas.step()
    losses = formulas.losses(step)
    wanted, slopes, smooth = expected(step, losses)
    bonus = formulas.entropy_bonus()
    entropies = formulas.rows("entropies")
    tokens = max(sum(map(len, formulas.places)), 1)
    wanted -= bonus * sum(row.sum() for row in entropies) / tokens
    sizes = [
        w * np.abs(losses(row, row, i)).sum() for i, (w, row) in enumerate(zip(step.weights, step.new, strict=True))
    ]
    scale = max(1.0, *sizes, *(float(np.abs(row).max(initial=0.0)) for row in slopes))
    for ranks in RANKS:
        results = trained(spec, case, ranks, shape, replace(TASK, coefficients=STATE, reward_moments=moments()))
        first = results[0]
        assert all(other.sums == first.sums for other in results), "every rank has the sums of all"
        assert first.sums.sums["loss"] == pytest.approx(wanted, rel=1e-6, abs=2e-6 * scale)
        assert first.sums.sums["tokens"] == sum(map(len, formulas.places))
        by_log_prob = np.zeros(len(case.new))
        by_entropy = np.zeros(len(case.new))
        certain = np.ones(len(case.new), dtype=bool)
        for place, row, ok in zip(formulas.places, slopes, smooth, strict=True):
            by_log_prob[place] = row
            certain[place] = ok
            by_entropy[place] = -bonus / tokens
        for each in results:
            np.testing.assert_allclose(each.by_log_prob[certain], by_log_prob[certain], rtol=2e-4, atol=2e-6 * scale)
            np.testing.assert_allclose(each.by_entropy, by_entropy, rtol=1e-6)
        if spec.critic is not None:
            check_values(formulas, case, results)
        found.append(first)
    return found


def check_values(formulas: Published, case: Case, results: list[Trained]) -> None:
    rows = formulas.rows("new_values")
    size = 1e-6
    wanted = np.zeros(len(case.new))
    for place, tokens in enumerate(formulas.places):
        for token, at in enumerate(tokens):
            sides = []
            for sign in (size, -size):
                moved = [values.copy() for values in rows]
                moved[place][token] += sign
                sides.append(formulas.value_loss(moved)[place])
            wanted[at] = (sides[0] - sides[1]) / (2 * size)
    for each in results:
        assert each.values is not None
        sums, gradient = each.values
        assert sums.loss == pytest.approx(formulas.value_loss(rows).sum(), rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-5)


@st.composite
def shapes(draw: st.DrawFn) -> PlanShape:
    """Draws what cuts a step into micro-batches: their tokens, packed or padded, as many on each rank or not."""
    budget = draw(st.integers(MAX_NEW_TOKENS + 4, 60))
    return PlanShape(1, budget, 1, 1, draw(st.booleans()), draw(st.booleans()))


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=4, deadline=None)
@given(case=cases(), shape=shapes())
def test_an_update_is_the_formulas_on_any_ranks(name: str, case: Case, shape: PlanShape) -> None:
    check(name, case, shape)


@pytest.mark.verify
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=examples(60), deadline=None)
@given(case=cases(), shape=shapes())
def test_an_update_is_the_formulas_in_many_more_cases(name: str, case: Case, shape: PlanShape) -> None:
    check(name, case, shape)


@pytest.mark.parametrize("spread", [0.3, 30.0], ids=["near", "huge-ratios"])
@pytest.mark.parametrize("name", METHODS)
def test_all_edges_at_once(name: str, spread: float) -> None:
    for found in check(name, edge_case(spread), PlanShape(1, 11, 1, 1)):
        assert np.isfinite(found.by_log_prob).all()
        assert found.by_log_prob.any() or spread > 1.0
        assert (found.sums.sums["clamped"] > 0) == (spread > 1.0 and name != "one-step")


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_whose_tokens_are_all_masked_teaches_nothing(name: str) -> None:
    for found in check(name, all_masked(edge_case()), PlanShape(1, 11, 1, 1)):
        assert (found.sums.sums["loss"], found.sums.sums["tokens"]) == (0.0, 0.0)
        assert not found.by_log_prob.any() and not found.by_entropy.any()


def test_the_edges_are_in_the_batch() -> None:
    batch = edge_case().batch
    groups = np.split(np.arange(len(batch)), batch.group_offsets[1:-1])
    counted = np.array([part.sum() for part in np.split(batch.loss_mask, batch.response_offsets[1:-1])])
    assert len(set(batch.rewards[groups[0]].tolist())) == 1, "equal rewards"
    assert counted[groups[0][0]] == 1, "one token"
    assert counted[5] == 0 < counted[4] and batch.response_lengths[5] > 0, "a response whose tokens are all masked"
    assert not batch.response_lengths[groups[2]].any(), "an empty group"
    assert not counted[groups[3]].any() and batch.response_lengths[groups[3]].all(), (
        "a group whose tokens are all masked"
    )
    assert batch.truncated[counted > 0].any(), "a truncated tail"
    assert batch.padding == (len(groups) - 1,) and not counted[groups[-1]].any(), "padding"


def kinds_of(union: Any) -> set[str]:
    members = getattr(union, "__origin__", union).__args__
    return {member.model_fields["kind"].default for member in members} - {"custom"}


@pytest.mark.parametrize(
    ("key", "union"),
    [
        ("loss", LossSpec),
        ("advantage", AdvantageSpec),
        ("importance_correction", CorrectionSpec),
        ("entropy", EntropySpec),
        ("length_penalty", LengthPenaltySpec),
    ],
)
def test_every_method_of_the_registries_is_here(key: str, union: Any) -> None:
    assert {tree[key]["kind"] for tree in METHODS.values() if key in tree} == kinds_of(union)
