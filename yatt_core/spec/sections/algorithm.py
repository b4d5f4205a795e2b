"""The learning algorithm and its options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from yatt_core.algorithms.advantages.group_std import GroupStdAdvantage
from yatt_core.algorithms.advantages.registry import AdvantageSpec
from yatt_core.algorithms.corrections.off_policy import OffPolicyMask
from yatt_core.algorithms.corrections.registry import CorrectionSpec
from yatt_core.algorithms.entropy.registry import EntropySpec
from yatt_core.algorithms.kl.adaptive import AdaptiveKl
from yatt_core.algorithms.kl.estimators import Estimator
from yatt_core.algorithms.losses.clip import ClipLoss
from yatt_core.algorithms.losses.registry import LossSpec
from yatt_core.algorithms.shaping.registry import LengthPenaltySpec
from yatt_core.section import DefaultKind
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.distillation import DistillationSpec
from yatt_core.spec.sections.model import GivenModelSpec
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.spec.sections.trainer import AdamWSpec


class KlSpec(SpecModel):
    """A KL penalty towards a reference policy, which begins as the weights before the first iteration."""

    coefficient: PositiveFloat = 0.01
    """Coefficient of the penalty."""
    where: Literal["loss", "reward"] = "loss"
    """`loss`: added to the loss, per token. `reward`: subtracted from the reward of the response, or of the token where
    the advantage is one of tokens."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """With d = log(policy / reference) of a token: `k1` is d, `k2` d^2 / 2, `k3` exp(-d) + d - 1. `null`: k3 in the loss, k1
    in the reward."""
    unbiased: bool = False
    """In the loss, multiplies a token's divergence by its ratio of new to old probability, so that value and gradient
    stay unbiased after the first step (arXiv 2512.02556)."""
    adaptive: AdaptiveKl | None = None
    """`null`: the coefficient is constant; otherwise the coefficient of the first iteration."""
    reference_interval: PositiveInt | None = None
    """Number of iterations after each of which the reference becomes the current policy (arXiv 2404.09656). `null`: the
    reference stays."""

    @property
    def formula(self) -> Estimator:
        """The estimator's name."""
        return self.estimator or ("k3" if self.where == "loss" else "k1")

    @model_validator(mode="after")
    def _check_place(self) -> KlSpec:
        if self.unbiased and self.where == "reward":
            raise ValueError("unbiased: a penalty in the reward is computed once, before the first step; write false")
        return self


class CriticAdamWSpec(AdamWSpec):
    """AdamW for the critic, with gradient clipping by global norm."""

    learning_rate: PositiveFloat = 1e-5
    """Constant; `trainer.schedule` does not apply to it."""


class CriticSpec(SpecModel):
    """A model that predicts at each token the reward still to come: the policy's layers with a scalar head."""

    model: Annotated[GivenModelSpec | None, DefaultKind("folder")] = None
    """The initial weights: a causal language model with the policy's tokenizer; `null`: the policy after SFT."""
    optimizer: CriticAdamWSpec = CriticAdamWSpec()
    """The critic's optimizer, separate from the policy's."""
    clip: PositiveFloat | None = 0.2
    """How far a value may move, in the value loss, from its prediction before the update; `null`: unbounded."""
    warmup_iterations: NonNegativeInt = 0
    """Number of initial iterations in which only the critic is trained and the policy stays fixed."""


class AlgorithmSpec(SpecModel):
    """What an update computes: advantages, the policy's loss, and what is added to either."""

    advantage: AdvantageSpec = GroupStdAdvantage()
    """How rewards become advantages of responses or tokens."""
    critic: CriticSpec | None = None
    """Required by the advantage `gae`, and only allowed with it."""
    epochs: PositiveInt = 1
    """Passes over an iteration's experience."""
    mini_batches: PositiveInt = 1
    """Optimizer steps per pass."""
    loss: LossSpec = ClipLoss()
    """The policy's loss."""
    kl: KlSpec | None = None
    """`null`: no KL penalty, and no reference policy is kept."""
    distillation: DistillationSpec | None = None
    """`null`: no teacher. To learn from a teacher only, set the weights of all reward parts to 0."""
    entropy: EntropySpec | None = None
    """What keeps the policy's entropy up; `null`: nothing."""
    epsilon: PositiveFloat = 1e-4
    """Added to the standard deviation by which advantages are divided."""
    reward_scaling: Literal["none", "running"] = "none"
    """`running`: rewards are divided by the standard deviation of all rewards of previous iterations (arXiv
    2307.04964)."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """How token losses are aggregated: the mean over all tokens, the mean over sequences of their token means, or
    the sum divided by the number of sequences x `max_new_tokens`."""
    importance_correction: CorrectionSpec | None = None
    """Correction for the difference between sampler and trainer; `null`: no correction."""
    sampler_support: Literal["full", "replay"] = "full"
    """Over which tokens the trainer normalises a sampled token's probability. `replay`: those that `rollout.top_k`, `top_p`,
    `min_p` and `min_new_tokens` left to draw it from, which the sampler records; needs `top_k`. `full`: the vocabulary."""
    length_penalty: LengthPenaltySpec | None = None
    """Subtracted from the reward by the response's length; `null`: none."""
    mask_truncated: bool = False
    """If true, no token of a response that was truncated at `rollout.max_new_tokens` counts in the loss; its reward still
    counts in the advantages of its group (overlong filtering, arXiv 2503.14476)."""
    permute_advantages: bool = False
    """Negative control: permutes the advantages over the batch with a seeded permutation, so that nothing can be
    learned."""
    off_policy_mask: OffPolicyMask | None = None
    """Masking of responses that the policy has moved away from; `null`: none are masked."""

    @model_validator(mode="after")
    def _check_advantage(self) -> AlgorithmSpec:
        kind = self.advantage.kind
        if (self.critic is None) == (kind == "gae"):
            expected = "write {}" if kind == "gae" else f"{kind} has none; write null, or the advantage gae"
            raise ValueError(f"critic: required by the advantage gae, and only allowed with it; {expected}")
        if self.permute_advantages and self.advantage.by_token:
            raise ValueError(f"permute_advantages: {kind} computes advantages of tokens, which cannot be permuted")
        if self.reward_scaling != "none" and kind == "gdpo":
            raise ValueError("reward_scaling: gdpo normalises each reward part apart; write none")
        return self

    @model_validator(mode="after")
    def _check_reference(self) -> AlgorithmSpec:
        if self.kl is not None and self.keeps_teacher and self.kl.reference_interval != self._teacher_interval:
            raise ValueError(
                "distillation.privileged.teacher_interval: the teacher and kl's reference are the same weights; expected "
                f"that of kl.reference_interval, {self.kl.reference_interval or 'null'}, or 1"
            )
        return self

    def support_mistakes(self, rollout: RolloutSpec) -> Iterator[str]:
        """Yields why the support of sampled tokens cannot be recorded, starting with the key."""
        if self.sampler_support == "replay" and rollout.engine.kind != "virtual" and rollout.top_k is None:
            yield (
                "algorithm.sampler_support: replay records the tokens that a token was drawn from, whose number only "
                "rollout.top_k bounds; expected rollout.top_k, such as 100, beside top_p or min_p, or full"
            )

    @property
    def keeps_teacher(self) -> bool:
        """Whether the policy is taught by kept weights of its own."""
        own = None if self.distillation is None else self.distillation.privileged
        return own is not None and own.keeps_teacher

    @property
    def reference_interval(self) -> int | None:
        """Number of iterations after each of which the kept weights become the policy's; None: they stay."""
        return self._teacher_interval if self.kl is None else self.kl.reference_interval

    @property
    def _teacher_interval(self) -> int | None:
        own = None if self.distillation is None else self.distillation.privileged
        return own.teacher_interval if own is not None and own.keeps_teacher else None

    def renews_reference(self, iteration: int) -> bool:
        """Returns True if the policy after an iteration becomes the reference."""
        return self.reference_interval is not None and iteration % self.reference_interval == 0

    @property
    def entropy_in_loss(self) -> bool:
        """Whether the loss contains the entropy."""
        return self.entropy is not None and self.entropy.in_loss

    @property
    def needs_old(self) -> bool:
        """Whether an update reads the log-probabilities before its first step even if it is the only one."""
        return self.entropy is not None and self.entropy.freezes

    @property
    def whole_responses(self) -> bool:
        """Whether a token's part of the objective depends on the other tokens of its response."""
        corrected = self.importance_correction is not None and self.importance_correction.whole_responses
        return self.loss.whole_responses or corrected or self.off_policy_mask is not None
