"""The policy's loss on a micro-batch (arXiv 1707.06347, 2402.03300), and its part of the step's metrics.

Consumes the trainer's log-probabilities and entropies of the micro-batch's response tokens, flattened, and what
was recorded about those tokens. Produces a differentiable contribution to the step's loss: the contributions of
all micro-batches and ranks add up to the loss, gradients included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from yatt_core.algorithms.distillation import taught_advantages
from yatt_core.algorithms.kl import bounded, is_bounded, k1, k3
from yatt_core.algorithms.policy_loss import clipped_policy_loss, importance_weight
from yatt_core.spec.sections.algorithm import PolicyGradientSpec


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What is known about a micro-batch's T counted response tokens, each [T] in float32.

    weights: `token_weights` of the token's response.
    old: old log-probabilities; None if this is the only step on the experience, as the current ones are then the
        old ones.
    reference: None unless the loss has a KL term.
    teacher: None without distillation.
    """

    advantages: torch.Tensor
    weights: torch.Tensor
    sampler: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None
    teacher: torch.Tensor | None = None


@dataclass(slots=True)
class LossSums:
    """Additive sums and maxima over tokens, as Python floats; merged over micro-batches here, over ranks elsewhere."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def merge(self, other: LossSums) -> None:
        """Merges in another part of the batch."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)


SUM_NAMES = (
    "tokens", "loss", "policy_loss", "entropy", "clipped", "clamped", "gap", "kl", "distillation_kl", "importance_weight",
)  # fmt: skip
MAXIMUM_NAMES = ("ratio", "negative_ratio", "gap")


def grpo_loss(
    spec: PolicyGradientSpec, log_probs: torch.Tensor, entropies: torch.Tensor, inputs: TokenInputs
) -> tuple[torch.Tensor, LossSums]:
    """Computes a micro-batch's loss: sum over tokens of weight * (importance * clipped loss + kl - bonus * entropy).

    Returns a scalar, and the maxima and the sums of `SUM_NAMES` (loss and policy_loss weighted as in the loss,
    all others plain sums over tokens).

    log_probs, entropies: [T], of the current weights at the sampling temperature.
    """
    old = log_probs.detach() if inputs.old is None else inputs.old
    log_ratio = log_probs - old
    ratio, beyond = bounded(log_ratio).exp(), is_bounded(log_ratio)
    sums: dict[str, torch.Tensor] = {}
    advantages = inputs.advantages
    if spec.distillation is not None and inputs.teacher is not None:
        divergence = k1(old, inputs.teacher)
        advantages = taught_advantages(advantages, divergence, spec.distillation.coefficient)
        sums["distillation_kl"] = divergence.sum(dtype=torch.float64)
    policy, clipped = clipped_policy_loss(ratio, advantages, spec.clip_low, spec.clip_high)
    if spec.importance_correction is not None:
        importance = importance_weight(old, inputs.sampler, spec.importance_correction.cap)
        policy = policy * importance
        sums["importance_weight"] = importance.sum(dtype=torch.float64)
    policy_sum = (policy * inputs.weights).sum()
    loss = policy_sum
    if spec.kl is not None and inputs.reference is not None:
        divergence = k3(log_probs, inputs.reference)
        beyond = beyond | is_bounded(log_probs - inputs.reference)
        loss = loss + spec.kl.coefficient * (divergence * inputs.weights).sum()
        sums["kl"] = divergence.detach().sum(dtype=torch.float64)
    if spec.entropy_bonus > 0.0:
        loss = loss - spec.entropy_bonus * (entropies * inputs.weights).sum()
    gap = (old - inputs.sampler).abs()
    sums["loss"] = loss.detach()
    sums["policy_loss"] = policy_sum.detach()
    sums["entropy"] = entropies.detach().sum(dtype=torch.float64)
    sums["clipped"] = clipped.sum(dtype=torch.float64)
    sums["clamped"] = beyond.sum(dtype=torch.float64)
    sums["gap"] = gap.sum(dtype=torch.float64)
    return loss, _collect(sums, ratio.detach(), gap)


def _collect(sums: dict[str, torch.Tensor], ratio: torch.Tensor, gap: torch.Tensor) -> LossSums:
    """Moves all sums out of torch in one transfer and adds the extremes."""
    found = list(sums.values()) + ([ratio.max(), ratio.min(), gap.max()] if ratio.numel() else [])
    numbers: list[float] = torch.stack([value.double() for value in found]).tolist()
    collected = LossSums(dict(zip(sums, numbers[: len(sums)], strict=True)))
    collected.sums["tokens"] = float(ratio.numel())
    if ratio.numel():
        highest, lowest, widest = numbers[len(sums) :]
        collected.maxima = {"ratio": highest, "negative_ratio": -lowest, "gap": widest}
    return collected
