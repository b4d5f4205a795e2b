"""Passes over a Megatron-Core model, through its own schedules, for any number of stages.

Consumes micro-batches, the same on every rank of a copy. The last stage computes its part of the vocabulary's
logits, a chunk of the counted tokens at a time, turns them into log-probabilities and entropies, summed over the
tensor-parallel ranks, and computes the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.products import held_linear
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.model import Grid, ModelPart
from yatt_core.engines.train.megatron.vocabulary import VocabularyShare
from yatt_core.engines.train.model.chunk_sizes import chunk_rows
from yatt_core.engines.train.model.chunks import loss_in_chunks, slices
from yatt_core.engines.train.model.forward import DistributionLoss, Float32, MicroBatch, Reader, TokenLoss, head_loss
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers, joined
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.progress import advanced

Finish = Callable[[torch.Tensor, MicroBatch], Any]
"""What the last stage computes from a micro-batch's hidden states, as the final norm leaves them."""


class MegatronForward:
    """Implements `TokenPasses`: only ranks of the last stage know log-probabilities and compute losses."""

    def __init__(
        self, part: ModelPart, grid: Grid, temperature: float, device: torch.device, world: Collective
    ) -> None:
        self._part = part
        self._grid = grid
        self._temperature = temperature
        self._device = device
        self._world = world
        self._products = products_of(part.settings.params_dtype, device)
        self._multiplying = self._products.in_modules()
        self._share = VocabularyShare(grid.tensor, grid.tensors, part.shape.vocabulary)

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Returns each counted token's log-probability, without gradients; zeros on ranks before the last stage."""

        def finish(hidden: torch.Tensor, micro_batch: MicroBatch) -> Float32:
            states = self._counted(hidden, micro_batch)
            head = self._head()
            parts = [
                self._measured(
                    logits=head(states[chunk]), micro_batch=micro_batch, chunk=chunk, entropy="none", temperature=None
                )[0]
                for chunk in slices(self._rows(), len(states))
            ]
            found: Float32 = torch.cat(parts).cpu().numpy()
            return found

        with torch.no_grad():
            found = self._run(micro_batches, finish, learning=False)
        return found or [np.zeros(len(micro_batch.positions), dtype=np.float32) for micro_batch in micro_batches]

    @property
    def vocabulary(self) -> int:
        """Number of tokens of a distribution."""
        return self._share.vocabulary

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        """Returns what a function reads from each counted token's distribution; nothing on ranks before the last stage."""

        def finish(hidden: torch.Tensor, micro_batch: MicroBatch) -> tuple[Numbers, ...]:
            states = self._counted(hidden, micro_batch)
            head = self._head()
            return joined(
                [
                    reader(micro_batch.part(chunk), self._distribution(head(states[chunk]), micro_batch, chunk))
                    for chunk in slices(self._rows(whole=True), len(states))
                ]
            )

        with torch.no_grad():
            return self._run(micro_batches, finish, learning=False)

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        """Sums the gradients of the losses, over the copies as well."""
        # The schedule divides the gradients by the sum of these counts, which is 1; the losses include their denominators.
        numbers = iter([int(self._grid.copy == 0), *[0] * len(micro_batches)])

        def finish(hidden: torch.Tensor, micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, None]:
            head = self._head()

            def measured(chunk: slice, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return self._measured(
                    logits=head(part), micro_batch=micro_batch, chunk=chunk, entropy=entropy, temperature=temperature
                )

            states = self._counted(hidden, micro_batch)
            rows = self._rows(whole=taught is not None)
            found = head_loss(
                loss=loss, micro_batch=micro_batch, states=states, rows=rows, measured=measured, whole=whole
            )
            weight = self._part.head()
            trained = [weight] if weight.requires_grad else []

            def part_loss(chunk: slice, part: torch.Tensor) -> torch.Tensor:
                own = found(chunk, *measured(chunk, part))
                if taught is None:
                    return own
                return own + taught(micro_batch.part(chunk), self._distribution(head(part), micro_batch, chunk))

            total = loss_in_chunks(states, trained, rows, part_loss)
            return total, torch.tensor(next(numbers), dtype=torch.int32, device=self._device), None

        self._run(micro_batches, finish, learning=True)

    def _counted(self, hidden: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
        """Returns the hidden states that predict counted tokens, [T, width], on every tensor-parallel rank.

        hidden: [length, rows, width]; with sequence parallelism, this rank's part of the length. Its gradient is
            summed over these ranks.
        """
        from megatron.core import tensor_parallel

        whole: torch.Tensor
        if self._part.settings.sequence_parallel:
            whole = tensor_parallel.gather_from_sequence_parallel_region(hidden)
        else:
            whole = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        rows, length = micro_batch.tokens.shape
        places = micro_batch.predicting % length * rows + micro_batch.predicting // length
        # Not transposed: Megatron-Core sums a gradient in place, and would lose the sum of one that is not contiguous.
        return whole.flatten(0, 1).index_select(0, places)

    def _head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns what turns states into logits, [n, own columns] in float32; its matrix is widened once for all chunks."""
        weight = self._part.head()
        if not self._products.widens:
            return lambda states: torch.nn.functional.linear(states, weight).float()
        wide = self._products.operand(weight.detach())
        return lambda states: held_linear(
            states=states, weight=weight, bias=None, wide_weight=wide, wide_bias=None
        ).float()

    def _measured(
        self,
        logits: torch.Tensor,
        micro_batch: MicroBatch,
        chunk: slice,
        entropy: EntropyUse,
        temperature: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the log-probabilities of a chunk's targets, and the entropies of their distributions or nothing."""
        scale = self._temperature if temperature is None else temperature
        logits = logits if scale == 1.0 else logits / scale
        return self._share.measures(logits, micro_batch.targets[chunk], entropy, micro_batch.support_of(chunk))

    def _distribution(self, logits: torch.Tensor, micro_batch: MicroBatch, chunk: slice) -> torch.Tensor:
        """Returns the log-distributions of a chunk's tokens at the sampling temperature, [n, vocabulary]."""
        return self._share.distribution(logits / self._temperature, micro_batch.support_of(chunk))

    def _rows(self, whole: bool = False) -> int:
        """Returns the number of tokens in a chunk. whole: whether a rank has the distributions of the whole vocabulary."""
        columns = len(self._part.head()) * (self._grid.tensors if whole else 1)
        return chunk_rows(columns, self._device.type == "cpu")

    def _run(self, micro_batches: Sequence[MicroBatch], finish: Finish, learning: bool) -> list[Any]:
        """Runs the schedule over all micro-batches; returns the last stage's results, nothing on other stages."""
        divisor = self._grid.tensors if self._part.settings.sequence_parallel else 1
        placed = iter([widened(one, divisor).on(self._device) for one in micro_batches])

        def step(batches: Any, model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
            advanced()
            micro_batch = next(batches)
            length = micro_batch.tokens.shape[1]
            positions = torch.arange(length, device=self._device).expand_as(micro_batch.tokens)
            outputs: torch.Tensor = model(micro_batch.tokens, positions, None)
            return outputs, lambda hidden, **_: finish(hidden, micro_batch)

        with on_this_device(), lost_group(self._world), self._multiplying:
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
