"""Weighted sums of models, block by block: whatever the models' size, only some blocks are in memory.

Consumes the weights of several checkpoints (`wire.part_files`) and a coefficient for each. Produces the tensors of the sum,
as a source that `wire.whole_files` writes and an engine loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.errors import ConfigurationError
from yatt_core.wire.part_files import TYPES, PartFiles
from yatt_core.wire.parts import Sizes

Array = npt.NDArray[Any]

FLOATS = {"F16": np.float32, "BF16": np.float32, "F32": np.float32, "F64": np.float64}
"""Types of floating-point tensors, and the type in which they are added up."""


class MergedWeights:
    """The sum of the models' tensors, each multiplied by its model's coefficient; a `TensorSource`.

    Products and sums are float32, in the order of the models, and rounded once to the tensor's own type. Tensors of integers
    have to be the same in all models.
    """

    def __init__(self, models: Sequence[PartFiles], coefficients: Sequence[float]) -> None:
        """Compares the models. Raises `ConfigurationError` if they do not have the same tensors."""
        if not models or len(models) != len(coefficients):
            raise ConfigurationError(
                f"{len(models)} models and {len(coefficients)} coefficients; expected one for each"
            )
        self._models = models
        self._coefficients = coefficients
        for other in models[1:]:
            if (other.shapes, other.kinds) != (models[0].shapes, models[0].kinds):
                raise ConfigurationError(f"the models cannot be merged: {_difference(models[0], other)}")

    @property
    def shapes(self) -> Mapping[str, Sizes]:
        """The shapes of the tensors, by name."""
        return self._models[0].shapes

    @property
    def kinds(self) -> Mapping[str, str]:
        """The types of the tensors, as safetensors spells them."""
        return self._models[0].kinds

    def blocks(self, name: str) -> Iterator[Array]:
        """Yields a tensor as blocks of rows, bfloat16 as integers. Raises `DataError` for a damaged file."""
        kind = self.kinds[name]
        for blocks in zip(*(model.blocks(name) for model in self._models), strict=True):
            if kind in FLOATS:
                yield _rounded(self._sum([_widened(block, kind) for block in blocks], FLOATS[kind]), kind)
            elif any(not np.array_equal(blocks[0], block) for block in blocks[1:]):
                raise ConfigurationError(f"the models cannot be merged: {name} has integers that differ")
            else:
                yield blocks[0]

    def _sum(self, blocks: Sequence[Array], dtype: Any) -> Array:
        total = np.zeros(blocks[0].shape, dtype)
        for block, coefficient in zip(blocks, self._coefficients, strict=True):
            total += dtype(coefficient) * block
        return total

    def read(self, name: str) -> Array:
        """Returns a whole tensor."""
        blocks = list(self.blocks(name))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _widened(block: Array, kind: str) -> Array:
    if kind == "BF16":  # the upper half of a float32
        return (block.astype(np.uint32) << 16).view(np.float32)
    return block.astype(FLOATS[kind], copy=False)


def _rounded(block: Array, kind: str) -> Array:
    if kind != "BF16":
        return block.astype(TYPES[kind], copy=False)
    import torch  # takes seconds, and only models in bfloat16 need it

    return torch.from_numpy(block).to(torch.bfloat16).view(torch.uint16).numpy()


def _difference(one: PartFiles, other: PartFiles) -> str:
    """Returns the first difference between two models' tensors."""
    for name in sorted(one.shapes.keys() | other.shapes.keys()):
        if name not in one.shapes or name not in other.shapes:
            return f"only one of them has {name}"
        facts = [(model.kinds[name], model.shapes[name]) for model in (one, other)]
        if facts[0] != facts[1]:
            return f"{name} is {facts[0]} in one and {facts[1]} in another"
    raise AssertionError("the models differ")
