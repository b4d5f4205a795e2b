"""What a rank contributes to the weights for the rollout engines: its own parts, or with low-rank adapters those alone.

Consumes the tensors that the rank holds. Weights that are to be merged with their adapters are gathered matrix by matrix,
for which all ranks iterate in step, and rank 0 contributes all of them: a product of some rows has other bits than those
rows of the whole product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from yatt_core.engines.adapters import is_adapter, plain_weights, share_of
from yatt_core.engines.rectangles import Parts
from yatt_core.engines.train.model.optimizer import whole_parts
from yatt_core.spec.sections.trainer import LoraSpec
from yatt_core.wire.parts import TensorPart, contributed

Held = Callable[[str], Iterable[TensorPart[torch.Tensor]]]
"""As `Policy.parts`."""


def sent_parts(
    lora: LoraSpec | None, rank: int, held: Held, merged: Callable[[], Iterable[tuple[str, torch.Tensor]]] | None
) -> Parts:
    """Yields a rank's parts.

    merged: yields whole weights, merged with adapters, on all ranks in step; None to yield those without numbers, for which
        nothing is gathered.
    """
    if lora is None:
        return contributed(held("weights"), rank)
    if lora.sync == "adapter":
        return contributed((part for part in held("weights") if is_adapter(part.name)), rank)
    tensors = merged() if merged else plain_weights(_outlines(held), share_of(lora))
    return (part for part in whole_parts(tensors, 1) if rank == 0)


def _outlines(held: Held) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights, whole and without numbers."""
    for part in held("weights"):
        yield part.name, torch.empty(part.shape, dtype=part.values.dtype, device="meta")
