"""Passes over a Megatron-Core model, through its own schedules, for any number of stages.

Consumes micro-batches, the same on every rank of a copy. The last stage turns its part of the vocabulary's
logits into log-probabilities and entropies of counted tokens, summed over the tensor-parallel ranks, and
computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.model import Grid, Part
from yatt_core.engines.train.megatron.vocabulary import VocabularyShare
from yatt_core.engines.train.model.forward import EntropyUse, Float32, MicroBatch, TokenLoss
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.progress import advanced

Finish = Callable[[torch.Tensor, MicroBatch], Any]
"""What the last stage computes from a micro-batch's logits, [rows, length, own part of the vocabulary]."""


class MegatronForward:
    """Implements `TokenPasses`: only ranks of the last stage know log-probabilities and compute losses."""

    def __init__(self, part: Part, grid: Grid, temperature: float, device: torch.device, world: Collective) -> None:
        self._part, self._grid, self._temperature = part, grid, temperature
        self._device, self._world = device, world
        self._share = VocabularyShare(grid.tensor, grid.tensors, part.shape.vocabulary)

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Returns each counted token's log-probability, without gradients; zeros on ranks before the last stage."""

        def finish(logits: torch.Tensor, micro_batch: MicroBatch) -> Float32:
            log_probs, _ = self._share.measures(self._counted(logits, micro_batch), micro_batch.targets, "none")
            found: Float32 = log_probs.cpu().numpy()
            return found

        with torch.no_grad():
            found = self._run(micro_batches, finish, learning=False)
        return found or [np.zeros(len(micro_batch.positions), dtype=np.float32) for micro_batch in micro_batches]

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
    ) -> None:
        """Sums the gradients of the losses, over the copies as well."""
        # The schedule divides the gradients by the sum of these counts, which is 1; the losses include their denominators.
        numbers = iter([int(self._grid.copy == 0), *[0] * len(micro_batches)])

        def finish(logits: torch.Tensor, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, None]:
            chosen = self._counted(logits, micro_batch, temperature)
            log_probs, entropies = self._share.measures(chosen, micro_batch.targets, entropy)
            number = torch.tensor(next(numbers), dtype=torch.int32, device=self._device)
            return loss(micro_batch, log_probs, entropies), number, None

        self._run(micro_batches, finish, learning=True)

    def _counted(self, logits: torch.Tensor, micro_batch: MicroBatch, temperature: float | None = None) -> torch.Tensor:
        """Returns the logits that predict counted tokens, [T, own part] in float32, divided by the temperature."""
        scale = self._temperature if temperature is None else temperature
        chosen = logits.flatten(0, 1).index_select(0, micro_batch.predicting).float()
        return chosen if scale == 1.0 else chosen / scale

    def _run(self, micro_batches: Sequence[MicroBatch], finish: Finish, learning: bool) -> list[Any]:
        """Runs the schedule over all micro-batches; returns the last stage's results, nothing on other stages."""
        divisor = self._grid.tensors if self._part.settings.sequence_parallel else 1
        placed = iter([widened(one, divisor).on(self._device) for one in micro_batches])

        def step(batches: Any, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
            advanced()
            micro_batch = next(batches)
            length = micro_batch.tokens.shape[1]
            positions = torch.arange(length, device=self._device).expand_as(micro_batch.tokens)
            later = torch.ones((1, 1, length, length), dtype=torch.bool, device=self._device).triu(1)
            outputs: torch.Tensor = model(micro_batch.tokens, positions, later)
            return outputs, lambda logits, **_: finish(logits, micro_batch)

        with on_this_device(), lost_group(self._world):
            from megatron.core.pipeline_parallel import get_forward_backward_func

            made: list[Any] = get_forward_backward_func()(
                forward_step_func=step,
                data_iterator=placed,
                model=[self._part.wrapped],
                num_microbatches=len(micro_batches),
                # Lengths travel with the activations between stages.
                seq_length=self._part.longest,
                micro_batch_size=1,
                forward_only=not learning,
                collect_non_loss_data=not learning,
            )
        return made


def widened(micro_batch: MicroBatch, divisor: int) -> MicroBatch:
    """Pads rows on the right, so that their length is a multiple of `divisor`."""
    rows, length = micro_batch.tokens.shape
    width = -(-length // divisor) * divisor
    if width == length:
        return micro_batch
    tokens = micro_batch.tokens.new_zeros((rows, width))
    tokens[:, :length] = micro_batch.tokens
    predicting = micro_batch.predicting
    return replace(micro_batch, tokens=tokens, predicting=predicting // length * width + predicting % length)
