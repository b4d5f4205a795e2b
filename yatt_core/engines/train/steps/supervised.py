"""One supervised optimizer step: the mean loss over a batch's answer tokens.

Consumes prompts with answers as tokens; changes the weights. Gradients and loss are summed over the ranks, so
every rank takes the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.train.model.forward import Int64, MicroBatch, assemble
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.sequences import Sequences, counted_lengths
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plan import plan_step
from yatt_core.spec.sections.model import SftSpec
from yatt_core.wire.ragged import offsets_of

Int32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Prompts with their reference answers as tokens; each answer ends as a response should. Implements `Sequences`."""

    prompt_tokens: Int32
    prompt_offsets: Int64
    response_tokens: Int32
    response_offsets: Int64
    loss_mask: Mask
    media: tuple[tuple[str, ...], ...]
    support: None = None
    held: None = None


def demonstrations_of(
    questions: Sequence[Int32], answers: Sequence[Int32], masks: Sequence[Mask], media: tuple[tuple[str, ...], ...] = ()
) -> Demonstrations:
    """Combines questions and answers, one row each.

    masks: which tokens of an answer count.
    media: content addresses of each question's images.
    """
    return Demonstrations(
        prompt_tokens=np.concatenate(questions),
        prompt_offsets=offsets_of(np.array([len(tokens) for tokens in questions])),
        response_tokens=np.concatenate(answers),
        response_offsets=offsets_of(np.array([len(tokens) for tokens in answers])),
        loss_mask=np.concatenate(masks),
        media=media,
    )


@dataclass(frozen=True, slots=True)
class SupervisedStep:
    """Takes supervised steps.

    budget: maximum number of tokens of a micro-batch.
    even: as in `PlanShape`.
    """

    forward: TokenPasses
    optimizer: PolicyOptimizer
    collective: Collective
    budget: int
    even: bool = False

    def take(self, batch: Sequences, rows: Int64, learning_rate: float) -> float:
        """Learns from some rows of a batch, which may repeat; returns the mean loss.

        Raises as `PolicyOptimizer.apply` does.
        """
        lengths = np.diff(batch.prompt_offsets) + np.diff(batch.response_offsets)
        plan = plan_step(lengths, rows, self.collective.ranks, self.budget, even=self.even)
        weight = 1.0 / float(counted_lengths(batch)[rows].sum())
        self.optimizer.zero()
        total = torch.zeros((), dtype=torch.float64)

        def loss(_: MicroBatch, log_probs: torch.Tensor, _entropies: torch.Tensor) -> torch.Tensor:
            value = -log_probs.sum() * weight
            total.add_(value.detach().cpu())
            return value

        micro_batches = [assemble(batch, indices) for indices in plan.parts[self.collective.rank]]
        self.forward.backward(micro_batches, loss, temperature=1.0)
        self.optimizer.reduce(self.collective)
        mean_loss = float(self.collective.sum(total))
        self.optimizer.apply(learning_rate, mean_loss)
        return mean_loss


def sft_learning_rate(sft: SftSpec, step: int) -> float:
    """Returns the learning rate of a step: a linear rise over `lr_warmup_steps` times a linear decay.

    The decay reaches `min_lr_ratio` at `max_steps`.

    step: counted from 1.
    """
    rise = min(1.0, step / max(sft.lr_warmup_steps, 1))
    return sft.learning_rate * rise * (1.0 - (1.0 - sft.min_lr_ratio) * step / sft.max_steps)
