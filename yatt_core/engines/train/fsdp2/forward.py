"""Passes over a model that FSDP2 has sharded over the ranks.

Consumes micro-batches, the same number on every rank; produces what `PolicyForward` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.products import Products
from yatt_core.engines.train.fsdp2.sharding import Sharding
from yatt_core.engines.train.model.forward import (
    DistributionLoss,
    Float32,
    MicroBatch,
    PolicyForward,
    Reader,
    TokenLoss,
)
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import lost_group
from yatt_core.sharded_modules import sharded_modules


class ShardedForward(PolicyForward):
    """Passes over a sharded model; every rank makes the same number. `score` leaves no parameters gathered.

    how: how the model is sharded, which also decides the type in which it computes.
    products: multiply matrices; None for those of that type.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        how: Sharding,
        world: Collective,
        values: bool = False,
        products: Products | None = None,
    ) -> None:
        super().__init__(
            model=model,
            temperature=temperature,
            dtype="float32",  # the shards see to a narrower one themselves
            device=how.device,
            values=values,
            products=products or products_of(how.computes, how.device),
        )
        self._world = world

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        """See `PolicyForward`."""
        with lost_group(self._world):
            found = super().score(micro_batches)
        self._reshard()
        return found

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        """See `PolicyForward`."""
        with lost_group(self._world):
            found = super().read(micro_batches, reader)
        self._reshard()
        return found

    def _reshard(self) -> None:
        """Lets go of gathered parameters, which would be out of date after the weights change."""
        for module in sharded_modules(self._model):
            module.reshard()

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        """See `PolicyForward`. Each pass sums its gradients over the ranks."""
        with lost_group(self._world):
            super().backward(
                micro_batches=micro_batches,
                loss=loss,
                entropy=entropy,
                temperature=temperature,
                whole=whole,
                taught=taught,
            )
