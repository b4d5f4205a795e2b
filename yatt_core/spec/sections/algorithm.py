"""The learning algorithm and its options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from yatt_core.algorithms.corrections.off_policy import OffPolicyMask
from yatt_core.algorithms.corrections.registry import CorrectionSpec
from yatt_core.algorithms.losses.clip import ClipLoss
from yatt_core.algorithms.losses.registry import LossSpec
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.distillation import DistillationSpec
from yatt_core.spec.sections.model import ModelFolder
from yatt_core.spec.sections.trainer import AdamWSpec


class KlSpec(SpecModel):
    """A KL penalty towards the reference policy: the weights before the first iteration."""

    coefficient: PositiveFloat = 0.01
    """Coefficient of the penalty."""
    where: Literal["loss", "reward"] = "loss"
    """`loss`: added to the loss (k3 estimator, per token). `reward`: subtracted from the reward (sum of log-ratios
    over the response)."""
    unbiased: bool = False
    """In the loss, multiplies a token's divergence by its ratio of new to old probability, so that value and gradient
    stay unbiased after the first step (arXiv 2512.02556)."""


class PolicyGradientSpec(SpecModel):
    """Options shared by the learning algorithms."""

    kind: Literal["grpo", "ppo"]
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
    entropy_bonus: NonNegativeFloat = 0.0
    """Coefficient of the mean token entropy, which is added to the objective."""
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
    off_policy_mask: OffPolicyMask | None = None
    """Masking of responses that the policy has moved away from; `null`: none are masked."""

    @property
    def whole_responses(self) -> bool:
        """Whether a token's part of the objective depends on the other tokens of its response."""
        corrected = self.importance_correction is not None and self.importance_correction.whole_responses
        return self.loss.whole_responses or corrected or self.off_policy_mask is not None


class GrpoSpec(PolicyGradientSpec):
    """Group relative policy optimisation (arXiv 2402.03300) and its common variants."""

    kind: Literal["grpo"] = "grpo"
    normalise: Literal["group_std", "group_mean", "batch_std"] = "group_std"
    """Advantages are rewards minus the group mean. `group_std`: divided by the group's standard deviation.
    `group_mean`: not divided (arXiv 2503.20783). `batch_std`: divided by the batch's standard deviation."""
    permute_advantages: bool = False
    """Negative control: permutes the advantages over the batch with a seeded permutation, so that nothing can be
    learned."""


class CriticAdamWSpec(AdamWSpec):
    """AdamW for the critic, with gradient clipping by global norm."""

    learning_rate: PositiveFloat = 1e-5
    """Constant; `trainer.schedule` does not apply to it."""


class CriticSpec(SpecModel):
    """A model that predicts at each token the reward still to come: the policy's layers with a scalar head."""

    model: ModelFolder | None = None
    """The initial weights: a causal language model with the policy's tokenizer; `null`: the policy after SFT."""
    optimizer: CriticAdamWSpec = CriticAdamWSpec()
    """The critic's optimizer, separate from the policy's."""
    clip: PositiveFloat | None = 0.2
    """How far a value may move, in the value loss, from its prediction before the update; `null`: unbounded."""
    warmup_iterations: NonNegativeInt = 0
    """Number of initial iterations in which only the critic is trained and the policy stays fixed."""


class PpoSpec(PolicyGradientSpec):
    """Proximal policy optimisation (arXiv 1707.06347): token-level advantages from a critic."""

    kind: Literal["ppo"] = "ppo"
    gamma: PositiveFloat = Field(default=1.0, le=1.0)
    """Discount factor gamma of generalised advantage estimation (arXiv 1506.02438), per token."""
    gae_lambda: NonNegativeFloat = Field(default=0.95, le=1.0)
    """lambda of generalised advantage estimation: 0 relies on the critic's next value only, 1 on the observed
    rewards only."""
    normalise: Literal["batch_std", "none"] = "batch_std"
    """`batch_std`: the mean over the batch's tokens is subtracted from the advantages, which are then divided by
    the standard deviation."""
    critic: CriticSpec = CriticSpec()


AlgorithmSpec = Annotated[GrpoSpec | PpoSpec, Field(discriminator="kind")]
