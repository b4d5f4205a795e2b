"""The forward pass of the trainer: log-probabilities and entropies of a micro-batch's response tokens.

Consumes sequences of prompt and response, and the prompts' images; produces flat tensors over the response
tokens that count in the loss. Samples are either packed into one row or have rows of their own, padded on the right; a
causal model never sees that padding, so no attention mask is needed. The head computes only the positions that
predict a counted token, a chunk of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.held_layers import held_layers
from yatt_core.bfloat16.products import Products
from yatt_core.engines.images import ImageReader, ShownPrompts, embed_prompts
from yatt_core.engines.train.model.chunk_sizes import chunk_rows
from yatt_core.engines.train.model.chunks import ChunkLoss, chunk_loss, loss_in_chunks, slices
from yatt_core.engines.train.model.division import divided
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers, joined, values_of
from yatt_core.engines.train.model.packed_attention import Runs, attending_by_sample
from yatt_core.engines.train.model.sequences import Sequences
from yatt_core.engines.train.model.truncation import EXCLUDED, excluded
from yatt_core.errors import DataError
from yatt_core.progress import advanced
from yatt_core.wire.ragged import offsets_of, ragged_positions
from yatt_core.wire.support import Support

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B samples with T counted response tokens.

    tokens: [B, L], prompt and response without its last token, padded on the right; or [1, L], all samples
        concatenated, in `runs` of equal length.
    predicting: [T], the position in the flattened tokens whose output predicts each counted token.
    targets: [T], the counted tokens.
    positions: [T], their positions in the batch's flat response columns.
    rows: [T], index in the batch of each token's sample.
    starts: [B], where each sample begins in the flattened tokens.
    prompt_lengths: [B], tokens of each sample's prompt.
    sizes: [B], tokens of each sample.
    shown: the prompts' images; None if the batch has no images.
    support: the tokens that each counted token was sampled from; None for the whole vocabulary.
    """

    tokens: torch.Tensor
    predicting: torch.Tensor
    targets: torch.Tensor
    positions: Int64
    rows: Int64
    starts: Int64
    prompt_lengths: Int64
    sizes: Int64
    shown: ShownPrompts | None = None
    runs: Runs = ()
    support: Support | None = None

    def part(self, counted: slice) -> MicroBatch:
        """Returns the same samples with only some of the counted tokens."""
        return replace(
            self,
            predicting=self.predicting[counted],
            targets=self.targets[counted],
            positions=self.positions[counted],
            rows=self.rows[counted],
            support=self.support_of(counted),
        )

    def support_of(self, counted: slice) -> Support | None:
        """Returns the supports of some of the counted tokens; None for the whole vocabulary."""
        return None if self.support is None else self.support.at(counted)

    def on(self, device: torch.device) -> MicroBatch:
        """Returns the micro-batch with its tensors on a device."""
        if self.tokens.device == device:
            return self
        tokens, predicting, targets = (t.to(device) for t in (self.tokens, self.predicting, self.targets))
        return replace(self, tokens=tokens, predicting=predicting, targets=targets)


TokenLoss = Callable[[MicroBatch, torch.Tensor, torch.Tensor], torch.Tensor]
"""(micro-batch or a part of one, log-probabilities [T], entropies [T] or empty) -> its part of a step's loss, a scalar."""

DistributionLoss = Callable[[MicroBatch, torch.Tensor], torch.Tensor]
"""(a part of a micro-batch, log-distributions [n, vocabulary]) -> its part of a step's loss, a scalar."""
Reader = Callable[[MicroBatch, torch.Tensor], tuple[torch.Tensor, ...]]
"""(a part of a micro-batch, log-distributions [n, vocabulary]) -> tensors with an entry for each of the n tokens."""


def assemble(batch: Sequences, indices: Int64, packed: bool = False) -> MicroBatch:
    """Assembles the samples at these indices into one micro-batch, in padded rows or in one row.

    Without samples, it returns an idle micro-batch of one token that does not count. Raises `DataError` for a
    sample without a prompt.
    """
    if not len(indices):
        return _idle(packed)
    prompt_lengths = np.diff(batch.prompt_offsets)[indices]
    response_lengths = np.diff(batch.response_offsets)[indices]
    if not prompt_lengths.all():
        sample = int(indices[np.argmin(prompt_lengths)])
        raise DataError(f"sample {sample} of the batch has no prompt: its first response token cannot be predicted")
    sizes = prompt_lengths + np.maximum(response_lengths - 1, 0)
    rows, width = (1, int(sizes.sum())) if packed else (len(indices), int(sizes.max()))
    starts = offsets_of(sizes)[:-1] if packed else np.arange(rows, dtype=np.int64) * width
    tokens = np.zeros(rows * width, dtype=np.int64)
    tokens[places_of(starts, prompt_lengths)] = batch.prompt_tokens[ragged_positions(batch.prompt_offsets, indices)]
    response_places = places_of(starts + prompt_lengths, response_lengths)
    positions = ragged_positions(batch.response_offsets, indices)
    inputs = np.ones(len(positions), dtype=np.bool_)
    inputs[np.cumsum(response_lengths)[response_lengths > 0] - 1] = False
    tokens[response_places[inputs]] = batch.response_tokens[positions[inputs]]
    counted = batch.loss_mask[positions]
    return MicroBatch(
        tokens=torch.from_numpy(tokens.reshape(rows, width)),
        predicting=torch.from_numpy(response_places[counted] - 1),
        targets=torch.from_numpy(batch.response_tokens[positions[counted]].astype(np.int64)),
        positions=positions[counted],
        rows=np.repeat(indices, response_lengths)[counted],
        starts=starts,
        prompt_lengths=prompt_lengths,
        sizes=sizes,
        shown=_shown(batch, indices, prompt_lengths) if batch.media else None,
        runs=_runs(sizes) if packed else (),
        support=None if batch.support is None else batch.support.at(positions[counted]),
    )


def _idle(packed: bool) -> MicroBatch:
    nothing, none = torch.zeros(0, dtype=torch.int64), np.zeros(0, dtype=np.int64)
    token = torch.zeros((1, 1), dtype=torch.int64)
    return MicroBatch(token, nothing, nothing, none, none, none, none, none, runs=((1, 1),) if packed else ())


def _runs(sizes: Int64) -> Runs:
    """Returns the runs of adjacent samples of equal size: (count, size)."""
    begins = np.flatnonzero(np.diff(sizes, prepend=-1))
    return tuple(zip(np.diff(begins, append=len(sizes)).tolist(), sizes[begins].tolist(), strict=True))


def _shown(batch: Sequences, indices: Int64, prompt_lengths: Int64) -> ShownPrompts:
    """Returns the images of these samples' prompts."""
    samples = indices.tolist()
    media, names = [batch.media[sample] for sample in samples], [f"sample {sample} of the batch" for sample in samples]
    return ShownPrompts(torch.from_numpy(prompt_lengths), media, names)


def places_of(starts: Int64, lengths: Int64) -> Int64:
    """Returns start, start + 1, ... of each row, row after row."""
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within


def head_loss(
    loss: TokenLoss,
    micro_batch: MicroBatch,
    states: torch.Tensor,
    rows: int,
    measured: Callable[[slice, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    whole: bool,
) -> ChunkLoss:
    """Returns the loss of a chunk of a micro-batch's tokens.

    states: [T, width], the head's input.
    rows: tokens in a chunk.
    measured: returns the log-probabilities and entropies of a chunk, given its states.
    whole: as in `TokenPasses`.
    """
    if not whole or len(states) <= rows:
        return lambda chunk, *values: loss(micro_batch.part(chunk), *values)
    with torch.no_grad():
        parts = [measured(chunk, states[chunk]) for chunk in slices(rows, len(states))]
    return chunk_loss(lambda *values: loss(micro_batch, *values), parts)


class PolicyForward:
    """Runs a Hugging Face causal model on micro-batches, at the sampling temperature.

    The head works on one chunk of the counted tokens at a time (`chunks.py`), as the model itself would: whatever the
    model does to its logits is done to each chunk's.

    dtype: precision of the matrix products (`bfloat16` through autocast); log-probabilities are float32.
    reader: reads a vision-language model's images, which are decoded again for every micro-batch.
    device: where the model computes; None for the device of its weights.
    values: whether the head has a single output, used instead of each counted token's log-probability.
    products: multiply matrices; None for those of the dtype on the device.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        dtype: str,
        reader: ImageReader | None = None,
        device: torch.device | None = None,
        values: bool = False,
        products: Products | None = None,
    ) -> None:
        self._model: Any = model
        self._reader = reader
        self._temperature = temperature
        self._bfloat16 = dtype == "bfloat16"
        self._device = device or next(model.parameters()).device
        self._products = products or products_of(getattr(torch, dtype), self._device)
        self._multiplying = self._products.in_modules()
        self._values = values
        self._body, self._top, self._outputs = divided(model)
        self._kind: Any = None

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Returns the log-probability of each counted token of each micro-batch, without gradients."""
        with torch.no_grad():
            return [self._scored(micro_batch) for micro_batch in micro_batches]

    @property
    def vocabulary(self) -> int:
        """Number of tokens of a distribution."""
        return self._outputs

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        """Returns what a function reads from the distributions of each micro-batch, without gradients."""
        with torch.no_grad(), self._multiplying:
            return [self._read(micro_batch, reader) for micro_batch in micro_batches]

    def _read(self, micro_batch: MicroBatch, reader: Reader) -> tuple[Numbers, ...]:
        placed = micro_batch.on(self._device)
        states, found = self._states(placed), []
        with held_layers(self._products, self._top):
            for chunk in slices(self._rows(), len(states)):
                distribution = self._log_distribution(states[chunk], None, placed.support_of(chunk))
                found.append(reader(micro_batch.part(chunk), distribution))
        advanced()
        return joined(found)

    def _scored(self, micro_batch: MicroBatch) -> Float32:
        found: Float32 = self.log_probs(micro_batch.on(self._device)).cpu().numpy()
        advanced()
        return found

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        """Adds the gradients of the losses, one micro-batch after another.

        temperature: overrides the sampling temperature.
        taught: see `TokenPasses`.
        whole: see `TokenPasses`; the head then works twice on a micro-batch of several chunks.

        `loss` is called with successive parts of a micro-batch's counted tokens, because the head works in chunks.
        """
        for micro_batch in micro_batches:
            with self._multiplying:
                total = self._total(micro_batch, loss, entropy, temperature, whole, taught)
                total.backward()  # type: ignore[no-untyped-call]
            advanced()

    def _total(
        self,
        micro_batch: MicroBatch,
        loss: TokenLoss,
        entropy: EntropyUse,
        temperature: float | None,
        whole: bool,
        taught: DistributionLoss | None,
    ) -> torch.Tensor:
        """Returns the loss of a micro-batch, with the gradients of the head already computed."""
        placed = micro_batch.on(self._device)
        states = self._states(placed)

        def measured(chunk: slice, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self._measured(part, placed, chunk, entropy, temperature)

        with held_layers(self._products, self._top):
            found = head_loss(loss, micro_batch, states, self._rows(), measured, whole)

            def part_loss(chunk: slice, part: torch.Tensor) -> torch.Tensor:
                if taught is None:
                    return found(chunk, *measured(chunk, part))
                distribution = self._log_distribution(part, temperature, placed.support_of(chunk))
                own = found(chunk, *values_of(distribution, placed.targets[chunk], entropy))
                return own + taught(micro_batch.part(chunk), distribution)

            return loss_in_chunks(states, self._weights_of_top(), self._rows(), part_loss)

    def log_probs(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Returns the log-probability of each counted token, or the head's value, [T] in float32."""
        with self._multiplying:
            states = self._states(micro_batch)
            chunks = slices(self._rows(), len(states))
            with held_layers(self._products, self._top):
                parts = [self._measured(states[chunk], micro_batch, chunk, "none", None)[0] for chunk in chunks]
            return torch.cat(parts)

    def _measured(
        self,
        states: torch.Tensor,
        micro_batch: MicroBatch,
        chunk: slice,
        entropy: EntropyUse,
        temperature: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a chunk's log-probabilities or values, and the entropies of its distributions or nothing."""
        if self._values:
            values = self._logits(states)[:, 0]
            return values, values.new_zeros(0)
        distribution = self._log_distribution(states, temperature, micro_batch.support_of(chunk))
        return values_of(distribution, micro_batch.targets[chunk], entropy)

    def _log_distribution(
        self, states: torch.Tensor, temperature: float | None, support: Support | None
    ) -> torch.Tensor:
        """Returns the log-probabilities of the vocabulary, renormalised over a support: [n, vocabulary] in float32."""
        logits = self._logits(states)
        scale = self._temperature if temperature is None else temperature
        logits = logits if scale == 1.0 else logits / scale
        if support is not None:
            logits = logits.masked_fill(excluded(support, logits.shape[1], logits.device), EXCLUDED)
        return torch.log_softmax(logits, dim=-1)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16)

    def _rows(self) -> int:
        return chunk_rows(self._outputs, self._device.type == "cpu")

    def _weights_of_top(self) -> list[nn.Parameter]:
        """Returns the trained parameters outside the body, with a head that is tied to the embedding."""
        parameters = dict.fromkeys(parameter for module in self._top for parameter in module.parameters())
        return [parameter for parameter in parameters if parameter.requires_grad]

    def _states(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Returns the body's output at the positions that predict counted tokens, [T, width].

        The model returns it in place of its logits, so that hooks on the model see it.
        """
        found: list[torch.Tensor] = []

        def take(_module: nn.Module, _arguments: Any, output: Any) -> Any:
            hidden: torch.Tensor = output.last_hidden_state
            found.append(hidden.flatten(0, -2).index_select(0, micro_batch.predicting))
            self._kind = type(output)
            return self._kind(last_hidden_state=hidden[:, :0])

        hooks = [
            self._body.register_forward_hook(take),
            self._model.register_forward_hook(lambda *_: found[0], prepend=True),
        ]
        try:
            with self._precision():
                states: torch.Tensor = self._run(micro_batch)
        finally:
            for hook in hooks:
                hook.remove()
        return states

    def _logits(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the model's output for states, [n, outputs] in float32: its own forward pass, without its body."""
        made = self._kind(last_hidden_state=states[None])
        self._body.forward = lambda *_, **__: made
        try:
            # Not a call of the module: hooks, such as those of a sharded model, belong to whole passes.
            with self._precision():
                logits: torch.Tensor = self._model.forward(use_cache=False).logits
        finally:
            del self._body.forward
        return logits[0].float()

    def _run(self, micro_batch: MicroBatch) -> Any:
        """Runs the model on padded rows or on one packed row; with images, on the embeddings of tokens and patches."""
        if micro_batch.shown is not None:
            embeddings = embed_prompts(self._model, self._reader, micro_batch.tokens, micro_batch.shown)
            return self._model(inputs_embeds=embeddings, use_cache=False)
        if not micro_batch.runs:
            return self._model(input_ids=micro_batch.tokens, use_cache=False)
        positions = torch.cat([torch.arange(tokens).repeat(samples) for samples, tokens in micro_batch.runs])[None]
        positions = positions.to(micro_batch.tokens.device)
        with attending_by_sample(self._model):
            return self._model(
                input_ids=micro_batch.tokens, position_ids=positions, runs=micro_batch.runs, use_cache=False
            )
