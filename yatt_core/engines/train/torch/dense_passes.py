"""The fast path of training: passes of a dense Llama or Qwen model through our own kernels, on the module's weights.

Consumes micro-batches and the optimizer's flat buffers, in which weights that are multiplied together are
adjacent; produces log-probabilities, and adds gradients to the buffer. Implements `TokenPasses`. The matrix
products are float32 or bfloat16; residual stream, norm weights, log-probabilities and the step's gradients
are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.products import Products
from yatt_core.engines.dense.aligned import aligned_products, require_cores
from yatt_core.engines.dense.arithmetic import rms_norm
from yatt_core.engines.dense.layers import run_layers
from yatt_core.engines.dense.rotary import RotaryTable
from yatt_core.engines.dense.shape import shape_of
from yatt_core.engines.dense.weights import EMBEDDING, HEAD, DenseWeights, dense_weights, fused_names
from yatt_core.engines.train.model.chunks import ChunkLoss, chunk_loss
from yatt_core.engines.train.model.forward import DistributionLoss, Float32, MicroBatch, Reader, TokenLoss
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers, joined
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.torch.dense_head import Head, backward_tokens, chunk_rows, measure_tokens, read_tokens
from yatt_core.engines.train.torch.shared_rows import SharedRows, attend, share_rows
from yatt_core.progress import advanced


def neighbours_of(model: nn.Module) -> list[tuple[str, ...]]:
    """Returns the parameters that must be adjacent in the optimizer's buffers for these passes."""
    return list(fused_names(dict(model.named_parameters()), shape_of(model).layers))


class DensePasses:
    """Passes over a dense model.

    optimizer: of the model, laid out by `neighbours_of`.
    temperature: the sampling temperature.
    products: multiply matrices; None for those of the dtype on the device of the weights.
    aligned: whether log-probabilities are those of an aligned sampler, to the last bit (`dense.aligned`). The weights are then
        read as the sampler has them: rounded to the dtype, all of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: FlatAdamW,
        temperature: float,
        dtype: str,
        products: Products | None = None,
        aligned: bool = False,
    ) -> None:
        self._shape = shape_of(model)
        self._names = frozenset(dict(model.named_parameters()))
        self._optimizer = optimizer
        self._temperature = temperature
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = optimizer.gradients.device
        self._aligned = aligned
        if aligned:
            require_cores(self._device)
            products = aligned_products(self._dtype)
        self._products = products or products_of(self._dtype, self._device)
        self._rotary = RotaryTable(model, self._dtype)
        gradients = optimizer.named(optimizer.gradients)
        self._of_embedding = gradients[EMBEDDING]
        self._of_head = self._of_embedding if self._shape.tied else gradients[HEAD]
        embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        self._padding: int | None = embedding.padding_idx

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """Returns the log-probability of each counted token of each micro-batch, without gradients."""
        with torch.no_grad():
            weights, _ = self._leaves()
            head = Head(self._cast(weights.head), self._temperature, products=self._products)
            return [self._scored(weights, head, micro_batch) for micro_batch in micro_batches]

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        """Adds the gradients of the losses to the optimizer's.

        temperature: overrides the sampling temperature.
        whole, taught: see `TokenPasses`; with `whole` the head works twice on a micro-batch of several chunks.

        `loss` is called with successive parts of a micro-batch's counted tokens, because the head works in
        chunks.
        """
        weights, collect = self._leaves()
        temperature = self._temperature if temperature is None else temperature
        head = Head(self._cast(weights.head.detach()), temperature, entropy != "none", self._products)
        for micro_batch in micro_batches:
            if len(micro_batch.targets):
                self._backward(
                    weights=weights, head=head, micro_batch=micro_batch, loss=loss, whole=whole, taught=taught
                )
                collect()
                advanced()

    @property
    def vocabulary(self) -> int:
        """Number of tokens of a distribution."""
        return len(self._of_head)

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        """Returns what a function reads from the distributions of each micro-batch, without gradients."""
        with torch.no_grad():
            weights, _ = self._leaves()
            head = Head(self._cast(weights.head), self._temperature, products=self._products)
            return [self._read(weights, head, micro_batch, reader) for micro_batch in micro_batches]

    def _read(self, weights: DenseWeights, head: Head, micro_batch: MicroBatch, reader: Reader) -> tuple[Numbers, ...]:
        found: list[tuple[torch.Tensor, ...]] = []
        if not len(micro_batch.targets):
            return joined([reader(micro_batch, head.weight.new_zeros((0, self.vocabulary)))])
        rows, _ = self._placed(micro_batch)
        states = self._states(weights, rows, self._embedded(weights, rows))
        read_tokens(
            head, states, micro_batch.support, lambda chunk, made: found.append(reader(micro_batch.part(chunk), made))
        )
        advanced()
        return joined(found)

    def _scored(self, weights: DenseWeights, head: Head, micro_batch: MicroBatch) -> Float32:
        if not len(micro_batch.targets):
            return torch.zeros(0).numpy()
        rows, targets = self._placed(micro_batch)
        states = self._states(weights, rows, self._embedded(weights, rows))
        found = measure_tokens(head, states, targets, micro_batch.support)[0].cpu().numpy()
        advanced()
        return found

    def _backward(
        self,
        weights: DenseWeights,
        head: Head,
        micro_batch: MicroBatch,
        loss: TokenLoss,
        whole: bool,
        taught: DistributionLoss | None,
    ) -> None:
        rows, targets = self._placed(micro_batch)
        embedded = self._embedded(weights, rows).requires_grad_()
        states = self._states(weights, rows, embedded)

        def part_loss(part: slice, log_probs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
            return loss(micro_batch.part(part), log_probs, entropies)

        with torch.no_grad():
            found: ChunkLoss = part_loss
            if whole and len(targets) > chunk_rows(head):
                measured = measure_tokens(head, states.detach(), targets, micro_batch.support)
                found = chunk_loss(lambda *values: loss(micro_batch, *values), [measured])
            of_states = backward_tokens(
                head=head,
                states=states.detach(),
                targets=targets,
                loss=found,
                of_weight=self._of_head,
                support=micro_batch.support,
                taught=None if taught is None else lambda part, made: taught(micro_batch.part(part), made),
            )
        torch.autograd.backward(states, of_states)
        assert embedded.grad is not None
        if self._padding is not None:
            # In transformers, the padding token's embedding gets no gradient from inputs.
            embedded.grad.masked_fill_((rows.tokens == self._padding)[:, None], 0.0)
        self._of_embedding.index_add_(0, rows.tokens, embedded.grad)

    def _placed(self, micro_batch: MicroBatch) -> tuple[SharedRows, torch.Tensor]:
        """Returns the micro-batch's rows and counted tokens on the device of the weights."""
        rows = share_rows(micro_batch, self._dtype, self._aligned)
        return rows.on(self._device), micro_batch.targets.to(self._device)

    def _embedded(self, weights: DenseWeights, rows: SharedRows) -> torch.Tensor:
        """Returns the embeddings of the rows' tokens, [R, width] in float32."""
        embedded = weights.embedding.detach()[rows.tokens]
        return embedded.to(self._dtype).float() if self._aligned else embedded

    def _states(self, weights: DenseWeights, rows: SharedRows, embedded: torch.Tensor) -> torch.Tensor:
        """Returns the head's input at the rows that predict counted tokens, [T, width]."""
        shape = self._shape
        rotary = self._rotary.at(rows.positions, rows.positions_below)
        hidden = run_layers(
            weights=weights,
            shape=shape,
            hidden=embedded,
            rotary=rotary,
            attend=lambda _, heads: attend(
                shape=shape, rows=rows, heads=heads, products=self._products, aligned=self._aligned
            ),
            dtype=self._dtype,
            multiply=self._products.linear,
        )
        return rms_norm(hidden.index_select(0, rows.predicting), weights.norm, shape.epsilon, self._dtype)

    def _cast(self, weight: torch.Tensor) -> torch.Tensor:
        """Returns a matrix or bias rounded to the type of the products, as they multiply it."""
        return self._products.operand(weight.to(self._dtype))

    def _leaves(self) -> tuple[DenseWeights, Callable[[], None]]:
        """Returns the weights as leaves of a graph, and a function that collects their gradients into the optimizer's.

        Call the function after each micro-batch; it also clears the leaves' gradients. The gradients of float32
        leaves are views of the optimizer's, so there is nothing to collect: the leaves are views of the weights or, for
        widened products, rounded copies of them, made once for all micro-batches. bfloat16 leaves are copies.
        """
        values = self._optimizer.values.detach()
        copies = list[tuple[torch.Tensor, torch.Tensor]]()

        def take(names: Sequence[str]) -> torch.Tensor:
            weight = self._optimizer.together(values, names)
            gradient = self._optimizer.together(self._optimizer.gradients, names)
            if names[0] in (EMBEDDING, HEAD):
                return weight
            multiplied = weight.dim() > 1 or names[0].endswith("bias")
            leaf = self._cast(weight) if multiplied or self._aligned else weight
            if leaf.dtype == weight.dtype:
                leaf = leaf.detach().requires_grad_()
                leaf.grad = gradient
            else:
                copies.append((leaf.requires_grad_(), gradient))
            return leaf

        def collect() -> None:
            for leaf, gradient in copies:
                assert leaf.grad is not None
                gradient.add_(leaf.grad)
                leaf.grad = None

        return dense_weights(self._names, self._shape.layers, take), collect
