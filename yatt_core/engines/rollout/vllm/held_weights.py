"""Reads the weights with which a vLLM worker computes, under Hugging Face names: to compare them, never to copy them.

Consumes a model of vLLM. Finds a tensor's rows in the matrices that vLLM fuses, leaves out the padding of vocabularies, and
unpacks matrices of which vLLM keeps only a packed copy. Knows vLLM's modules by their attributes, and imports none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from yatt_core.engines.rectangles import comparable
from yatt_core.engines.rollout.incoming import Arrived
from yatt_core.wire.parts import Box, Sizes

PROBE_ROWS = 256
"""Columns of a packed matrix that are unpacked at a time."""
WIDTHS = ("input_size_per_partition", "input_size", "embedding_dim")
"""Attributes of vLLM's modules that may tell how many columns a worker's matrix has."""
QKV = ("q", "k", "v")
"""vLLM's names of what it fuses to one matrix, in their order."""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A worker's part of a tensor: a rectangle that begins at `offsets`."""

    offsets: Sizes
    values: torch.Tensor


class HeldTensors:
    """The tensors of a worker's model."""

    def __init__(self, model: Any) -> None:
        self._modules: dict[str, Any] = dict(model.named_modules())
        packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
        self._fused = {part: (fused, number) for fused, parts in packed.items() for number, part in enumerate(parts)}

    @torch.no_grad()
    def part(self, name: str, shape: Sizes) -> HeldPart | None:
        """Returns the worker's part of a tensor; None if it has none, or its layout is not known here.

        name: of a tied head, that of the embeddings.
        shape: shape of the whole tensor.
        """
        module, number = self._module_of(name)
        if module is None or (values := self._values(module, name.rpartition(".")[2])) is None:
            return None
        if number is not None:
            start, size = _rows(module, number)
            values = values[start : start + size]
        elif (indices := getattr(module, "shard_indices", None)) is not None:
            rows = self._vocabulary(module, values)[: indices.num_org_elements]
            return HeldPart((indices.org_vocab_start_index, *[0] * (len(shape) - 1)), rows)
        return _placed(values, shape, int(getattr(module, "tp_rank", 0)), int(getattr(module, "tp_size", 1)))

    def _module_of(self, name: str) -> tuple[Any, int | None]:
        """Returns the module that has a tensor, None if there is none, and the tensor's place among those that it fuses.

        The place is None for a tensor that is not fused.
        """
        path, _, attribute = name.rpartition(".")
        parent, _, leaf = path.rpartition(".")
        module = self._modules.get(path)
        if isinstance(getattr(module, attribute, None), torch.Tensor):
            return module, None
        fused, number = self._fused.get(leaf, ("", 0))
        return self._modules.get(f"{parent}.{fused}" if parent else fused), number

    def _values(self, module: Any, attribute: str) -> torch.Tensor | None:
        """Returns a module's parameter with which it computes; None if it has none of this name."""
        found = getattr(module, attribute, None)
        if not isinstance(found, torch.Tensor):
            return None
        return _unpacked(module) if attribute == "weight" and not found.numel() else found

    def _vocabulary(self, module: Any, values: torch.Tensor) -> torch.Tensor:
        """Returns embeddings or a head; if a packed copy of either, or of a tied head, differs, then this copy."""
        for other in self._modules.values():
            if getattr(other, "cpu_linear", None) is not None and other.weight is module.weight:
                packed = _unpacked(other)
                if not torch.equal(comparable(packed), comparable(values)):
                    return packed
        return values


def _unpacked(module: Any) -> torch.Tensor:
    """Returns a matrix that is packed for the CPU, from its products with unit vectors, which are exact.

    The sign of a zero is lost.
    """
    weight = module.weight
    linear = getattr(module, "cpu_linear", None)
    if linear is None:
        return weight  # type: ignore[no-any-return]
    width = next(int(size) for name in WIDTHS if (size := getattr(module, name, 0)))
    columns = list[torch.Tensor]()
    for start in range(0, width, PROBE_ROWS):
        count = min(PROBE_ROWS, width - start)
        probe = torch.zeros(count, width, dtype=weight.dtype)
        probe[:, start : start + count].fill_diagonal_(1.0)
        columns.append(linear(probe, weight, None).t())
    return torch.cat(columns, 1)


def _rows(module: Any, number: int) -> tuple[int, int]:
    """Returns the first row and the number of rows that a tensor has in a worker's fused matrix.

    number: place of the tensor among those that are fused.
    """
    if hasattr(module, "num_kv_heads"):
        mapped = module._get_shard_offset_mapping, module._get_shard_size_mapping
        start, size = (of(QKV[number]) for of in mapped)
        return int(start), int(size)
    sizes = [size // module.tp_size for size in module.output_sizes]
    return sum(sizes[:number]), sizes[number]


def _placed(values: torch.Tensor, shape: Sizes, rank: int, ranks: int) -> HeldPart | None:
    """Returns where a worker's part is in the whole tensor; None if the shapes do not fit.

    Several workers have the same part if there are fewer parts than workers.
    """
    if values.dim() != len(shape):
        return None
    divided = [place for place, (own, whole) in enumerate(zip(values.shape, shape, strict=True)) if own != whole]
    offsets = [0] * len(shape)
    if divided:
        place, *others = divided
        sizes = tuple(values.shape)
        if others or not sizes[place] or shape[place] % sizes[place]:
            return None
        offsets[place] = rank * shape[place] // ranks // sizes[place] * sizes[place]
    return HeldPart(tuple(offsets), values)


def joined_parts(shape: Sizes, parts: Sequence[HeldPart]) -> torch.Tensor | None:
    """Returns a whole tensor; None if the parts do not make it up.

    Where workers hold different numbers in the same place, the result is NaN.
    """
    if not parts:
        return None
    whole = torch.empty(shape, dtype=parts[0].values.dtype)
    arrived = Arrived()
    for part in parts:
        box = Box(part.offsets, tuple(part.values.shape))
        place = whole[box.slices((0,) * len(shape))]
        if arrived.add(box):
            place.copy_(part.values)
        elif not torch.equal(place, part.values):
            place.fill_(torch.nan)
    return whole if arrived.numbers == math.prod(shape) else None
