"""Entropy methods and the adaptive KL coefficient against their formulas, and the state that they leave in a commit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.train.support import make_spec
from tests.matrix import examples
from yatt_core.algorithms.entropy.adaptive import AdaptiveEntropy
from yatt_core.algorithms.entropy.clip_cov import CovarianceClip
from yatt_core.algorithms.kl.adaptive import AdaptiveKl
from yatt_core.engines.train.steps.coefficients import adapted, coefficient_metrics, entropy_bonus, kl_coefficient
from yatt_core.engines.train.steps.learner import update_metrics
from yatt_core.engines.train.steps.objective import SUM_NAMES, LossSums


@given(st.floats(1e-4, 1.0), st.floats(0.0, 2.0), st.integers(1, 500))
def test_the_kl_coefficient_follows_the_published_controller(coefficient: float, kl: float, samples: int) -> None:
    error = max(-0.2, min(0.2, (kl - 0.1) / 0.1))
    found = AdaptiveKl(target=0.1, horizon=1000.0).after(coefficient, kl, samples)
    assert found == pytest.approx(coefficient * (1 + error * samples / 1000.0))


def test_the_entropy_coefficient_rises_below_the_target_and_is_not_applied_above() -> None:
    method = AdaptiveEntropy(target=0.5, step=0.1, start=0.05)
    state = dict[str, float]()
    applied = [method.bonus(state)]
    for entropy in (0.4, 0.3, 0.5, 0.9, 0.8, 0.4):
        state = method.after(state, entropy)
        applied.append(method.bonus(state))
    assert applied == pytest.approx([0.05, 0.15, 0.25, 0.15, 0.0, 0.0, 0.1])
    assert state["entropy"] == pytest.approx(0.1), "c falls by a step above the target, and never below 0"


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.floats(0.01, 1.0))
def test_covariance_clipping_is_the_published_choice(seed: int, tokens: int, fraction: float) -> None:
    noise = np.random.default_rng(seed)
    log_probs = noise.normal(-2, 2, tokens)
    advantages = noise.normal(0, 2, tokens)
    order = noise.permutation(tokens)
    eligible = [
        t for t in order if 1.0 <= (log_probs[t] - log_probs.mean()) * (advantages[t] - advantages.mean()) <= 5.0
    ]
    wanted = np.isin(np.arange(tokens), eligible[: max(int(fraction * tokens), 1)])
    columns = (torch.tensor(column) for column in (log_probs, advantages, order))
    assert CovarianceClip(fraction=fraction).frozen(*columns).tolist() == wanted.tolist()


def test_coefficients_of_a_run() -> None:
    adaptive: dict[str, Any] = {
        "kl": {"coefficient": 0.5, "adaptive": {"target": 0.1, "horizon": 240}},
        "entropy": {"kind": "adaptive", "target": 1.0, "step": 0.01},
    }
    spec = make_spec(algorithm=adaptive)
    assert (kl_coefficient(spec.algorithm, {}), entropy_bonus(spec.algorithm, {})) == (0.5, 0.0)
    after = adapted(spec, {}, {"kl": 1.0, "entropy": 0.3})
    assert after == {"kl": pytest.approx(0.5 * (1 + 0.2 * 24 / 240)), "entropy": 0.01, "entropy_bonus": 0.01}
    assert adapted(spec, after, {}) == after, "a skipped update changes nothing"
    assert coefficient_metrics(spec.algorithm, after) == {"kl_coefficient": after["kl"], "entropy_coefficient": 0.01}
    plain = make_spec(algorithm={"kl": {"coefficient": 0.5}, "entropy": {"kind": "bonus", "coefficient": 0.2}})
    assert adapted(plain, {}, {"kl": 1.0, "entropy": 0.3}) == {}
    assert (kl_coefficient(plain.algorithm, {}), entropy_bonus(plain.algorithm, {})) == (0.5, 0.2)
    assert coefficient_metrics(plain.algorithm, {}) == {}


def test_an_update_without_tokens_measures_nothing_that_coefficients_follow() -> None:
    kl = {"coefficient": 0.5, "adaptive": {"target": 0.1, "horizon": 240}}
    spec = make_spec(algorithm={"kl": kl, "entropy": {"kind": "adaptive", "target": 1.0, "step": 0.01}})
    sums = LossSums(dict.fromkeys(SUM_NAMES, 0.0))
    metrics = update_metrics(spec, [sums], [0.0])
    assert (metrics["tokens"], metrics["update/empty_steps"]) == (0.0, 1.0)
    assert not {"entropy", "kl", "clip_fraction", "train_rollout_logprob_diff_mean", "ratio_max"} & set(metrics)
    state = {"kl": 0.3, "entropy": 0.02, "entropy_bonus": 0.02}
    assert adapted(spec, state, metrics) == state
