"""What an update should compute by the published formulas, in float64 and response by response, for any spec and batch.

Shares nothing with the trainer but the seeded permutation from which Clip-Cov chooses. The formulas of single methods are in
the tests of these methods.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.algorithms.ragged import Reference, Rows, Step
from tests.algorithms.test_advantages import CASES as ADVANTAGES
from tests.algorithms.test_advantages import EPSILON, gae
from tests.algorithms.test_corrections import weights_of
from tests.algorithms.test_gae import published
from tests.algorithms.trained import SEED, Array, Case
from tests.engines.train.support import MAX_NEW_TOKENS
from yatt_core.algorithms.advantages.base import RewardBatch
from yatt_core.engines.train.steps.plan import seeded_permutation
from yatt_core.spec.run import RunSpec

BOUND = 20.0


class Published:
    """The formulas' view of a case: only samples that are no padding, only tokens that count.

    earlier: rewards of earlier iterations, if the spec scales rewards by their deviation.
    state: adaptive coefficients.
    """

    def __init__(self, spec: RunSpec, case: Case, loss: Any, earlier: Array, state: dict[str, float]) -> None:
        self.spec = spec
        self.case = case
        self._loss = loss
        self._state = state
        batch = case.batch
        self.samples = [i for i, ordinal in enumerate(batch.ordinals) if ordinal not in batch.padding]
        self.places = [self._counted(i) for i in self.samples]
        self.advantages, self.returns = self._advantages(earlier)

    def _counted(self, sample: int) -> Array:
        """Returns where a sample's counted tokens are in the columns."""
        batch = self.case.batch
        if self.spec.algorithm.mask_truncated and batch.truncated[sample]:
            return np.empty(0, dtype=np.int64)
        start, stop = batch.response_offsets[sample : sample + 2]
        return start + np.flatnonzero(batch.loss_mask[start:stop])

    def rows(self, name: str) -> Rows:
        """Returns a column's counted tokens, in float64, response by response."""
        return [self.case.columns[name][places].astype(np.float64) for places in self.places]

    def _rewards(self, earlier: Array) -> tuple[Array, dict[str, tuple[float, Array]]]:
        batch = self.case.batch
        algorithm = self.spec.algorithm
        rewards = batch.rewards[self.samples].copy()
        parts = {name: (WEIGHTS[name], values[self.samples]) for name, values in batch.reward_parts.items()}
        if (shaping := algorithm.length_penalty) is not None:
            ends = batch.response_offsets
            written = np.array([batch.loss_mask[ends[i] : ends[i + 1]].sum() for i in self.samples])
            if shaping.kind == "linear":
                penalty = shaping.penalty * written / MAX_NEW_TOKENS
            else:
                over = written - (MAX_NEW_TOKENS - shaping.buffer)
                penalty = shaping.penalty * np.clip(over / shaping.buffer, 0, 1)
            rewards -= penalty
            parts["length"] = (1.0, -penalty)
        if algorithm.reward_scaling == "running":
            rewards /= earlier.std(ddof=1) + EPSILON
        return rewards, parts

    def divergences(self, policy: Rows) -> Rows:
        """Returns the KL estimator's value of each token."""
        kl = self.spec.algorithm.kl
        assert kl is not None
        kind = kl.estimator or ("k3" if kl.where == "loss" else "k1")
        found = []
        for own, reference in zip(policy, self.rows("reference"), strict=True):
            d = own - reference
            near = np.clip(own - reference, -BOUND, BOUND)
            found.append({"k1": d, "k2": d**2 / 2, "k3": np.exp(-near) + near - 1}[kind])
        return found

    def _advantages(self, earlier: Array) -> tuple[Rows, Rows]:
        """Returns advantages and a critic's targets, token by token."""
        algorithm = self.spec.algorithm
        kl = self.spec.algorithm.kl
        lengths = np.array([len(places) for places in self.places])
        rewards, parts = self._rewards(earlier)
        by_token = algorithm.advantage.by_token
        penalties = None
        if kl is not None and kl.where == "reward":
            divergences = self.divergences(self.rows("old"))
            if by_token:
                penalties = self._kl_coefficient() * np.concatenate([np.empty(0), *divergences])
            else:
                change = -self._kl_coefficient() * np.array([row.sum() for row in divergences])
                rewards = rewards + change
                parts = {**parts, "change": (1.0, change)}
        ordinals = self.case.batch.ordinals[self.samples]
        sizes = np.array([(ordinals == ordinal).sum() for ordinal in dict.fromkeys(ordinals.tolist())])
        values = self.rows("values")
        seen = RewardBatch(rewards, sizes, lengths, EPSILON, penalties, np.concatenate([np.empty(0), *values]), parts)
        name = "baseline" if getattr(algorithm.advantage, "baseline", False) else algorithm.advantage.kind
        if not by_token:
            found = ADVANTAGES[name][1](seen)
            return [np.full(length, value) for length, value in zip(lengths, found, strict=True)], []
        if not lengths.sum():
            return [np.empty(0)] * len(lengths), [np.empty(0)] * len(lengths)
        ends = np.cumsum(lengths)[:-1]
        if algorithm.advantage.kind != "gae":
            return np.split(ADVANTAGES[name][1](seen), ends), []
        flat = np.zeros(lengths.sum()) if penalties is None else penalties
        targets = [self._target(*each) for each in zip(rewards, np.split(flat, ends), values, strict=True)]
        return np.split(gae(seen), ends), targets

    @staticmethod
    def _target(reward: float, penalties: Array, values: Array) -> Array:
        """Returns the values' targets: values plus advantages that are not whitened."""
        rewards = -penalties
        if len(rewards):
            rewards[-1] += reward
        return np.array(published(rewards.tolist(), values.tolist(), GAMMA, GAE_LAMBDA)) + values

    def _kl_coefficient(self) -> float:
        kl = self.spec.algorithm.kl
        assert kl is not None
        return kl.coefficient if kl.adaptive is None else self._state["kl"]

    def weights(self) -> Array:
        """Returns the weight of each response's tokens."""
        lengths = np.array([len(places) for places in self.places])
        count = len(lengths)
        return {
            "token_mean": np.full(count, 1 / max(lengths.sum(), 1)),
            "sequence_mean": 1 / (count * np.maximum(lengths, 1)),
            "fixed_length": np.full(count, 1 / (count * MAX_NEW_TOKENS)),
        }[self.spec.algorithm.aggregation]

    def step(self) -> Step:
        """Returns the step of the policy."""
        new = self.rows("new")
        old = self.rows("old") if self.spec.needs_old else new
        advantages = self.advantages
        if (distillation := self.spec.algorithm.distillation) is not None:
            pairs = zip(self.rows("teacher"), self.rows("other_teacher"), strict=True)
            taught = [np.log((np.exp(one) + 3 * np.exp(other)) / 4) for one, other in pairs]
            advantages = [
                a - distillation.coefficient * (b - q) for a, b, q in zip(advantages, old, taught, strict=True)
            ]
        return Step(new, old, self.rows("sampler"), self.rows("reference"), self.weights(), advantages, [])

    def losses(self, step: Step) -> Reference:
        """Returns the loss of a response's tokens, in which gradients stop at the second argument."""
        algorithm = self.spec.algorithm
        method = self._loss(step)
        correction = algorithm.importance_correction
        tree = None if correction is None else correction.model_dump()
        frozen = self._frozen(step)
        kl = algorithm.kl if algorithm.kl is not None and algorithm.kl.where == "loss" else None

        def losses(new: Array, fixed: Array, i: int) -> Array:
            found = method(new, fixed, i)
            if tree is not None:
                found = found * weights_of(tree, step.old[i] - step.sampler[i])
            if (mask := algorithm.off_policy_mask) is not None and len(new):
                away = (step.sampler[i] - fixed).mean() > mask.delta
                found = np.where((step.advantages[i] < 0) & away, 0.0, found)
            if frozen is not None:
                found = np.where(frozen[i], method(fixed, fixed, i), found)
            if kl is not None:
                rows = [new if place == i else row for place, row in enumerate(step.new)]
                ratio = np.exp(np.clip(new - step.old[i], -BOUND, BOUND)) if kl.unbiased else 1.0
                found = found + self._kl_coefficient() * ratio * self.divergences(rows)[i]
            return found

        return losses

    def _frozen(self, step: Step) -> list[Array] | None:
        method: Any = self.spec.algorithm.entropy
        if method is None or method.kind != "clip_cov":
            return None
        log_probs, advantages = (np.concatenate([np.empty(0), *rows]) for rows in (step.old, step.advantages))
        if not len(log_probs):
            return [np.zeros(0, dtype=bool)] * len(step.new)
        covariances = (log_probs - log_probs.mean()) * (advantages - advantages.mean())
        order = seeded_permutation(len(log_probs), "frozen_tokens", SEED)
        eligible = [t for t in order if method.low <= covariances[t] <= method.high]
        chosen = np.isin(np.arange(len(log_probs)), eligible[: max(int(method.fraction * len(log_probs)), 1)])
        return np.split(chosen, np.cumsum([len(row) for row in step.new])[:-1])

    def entropy_bonus(self) -> float:
        """Returns the coefficient of the mean entropy."""
        method: Any = self.spec.algorithm.entropy
        if method is None or method.kind == "clip_cov":
            return 0.0
        return float(method.coefficient if method.kind == "bonus" else self._state["entropy_bonus"])

    def value_loss(self, values: Rows) -> Array:
        """Returns a critic's loss of each response, as a part of the mean over all tokens."""
        critic = self.spec.critic
        tokens = max(sum(map(len, self.places)), 1)
        assert critic is not None
        found = []
        for new, old, target in zip(values, self.rows("values"), self.returns, strict=True):
            loss = (new - target) ** 2
            if critic.clip is not None:
                loss = np.maximum(loss, (np.clip(new, old - critic.clip, old + critic.clip) - target) ** 2)
            found.append(loss.sum() / 2 / tokens)
        return np.array(found)


WEIGHTS = {"first": 0.7, "second": 0.3}
GAMMA = 0.9
GAE_LAMBDA = 0.8
