"""The shared part of trainers whose ranks hold one model together: all ranks take part when whole tensors are needed.

Derived engines define how whole tensors are assembled, one at a time. No rank keeps them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from yatt_core.digests import ordered_weights_digest
from yatt_core.engines.device import placed
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.ranks.process_group import open_process_group
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.trained import Changed

Named = Iterator[tuple[str, torch.Tensor]]


class SharedPolicy(Policy):
    """A model that the ranks hold together."""

    def __init__(self, spec: RunSpec, context: RankContext, layout: Layout) -> None:
        super().__init__(spec, context, layout)
        self._probe: nn.Module | None = None

    @abstractmethod
    def _held(self) -> Any:
        """Copies what this rank holds: weights, moments, steps."""

    @abstractmethod
    def _hold(self, held: Any) -> None:
        """Restores what `_held` returned."""

    @abstractmethod
    def _divide(self) -> None:
        """Determines this rank's place in a new group."""

    @abstractmethod
    def _whole(self, ordered: bool) -> Named:
        """Yields whole weights under Hugging Face names, on the CPU, one at a time.

        ordered: whether they come sorted by name.
        """

    def connect(self, rank: int, ranks: int, address: str, changed: Changed) -> None:
        """Joins the group of ranks; this rank's tensors are carried over into a new group."""
        self.reload()
        held = None if self._model is None else self._held()
        super().connect(rank, ranks, address, changed)
        open_process_group(self.world)
        self._divide()
        if held is not None:
            changed()  # until its tensors are restored
            self.build()
            self._hold(held)

    def begin(self) -> None:
        """See `Policy`."""
        super().begin()
        self._probe = None

    def probe_model(self) -> nn.Module:
        """Returns a whole model of this rank's own, since ranks that decode together would have to stop together."""
        if self._probe is None:
            self._probe = placed(load_causal_lm(self.context.model_path, "float32"), self.device, "a copy to probe SFT")
        own = self._probe.state_dict()
        for name, tensor in self.weights():
            own[name].copy_(tensor)
        return self._probe

    def digest_of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """Computes the digest on rank 0, for which the other ranks gather the tensors."""
        if self.world.rank == 0:
            return self.world.tell(ordered_weights_digest((name, tensor.numpy()) for name, tensor in tensors))
        deque(tensors, maxlen=0)
        return self.world.tell("")

    def tensors(self, ordered: bool = False) -> Named:
        self.loaded()
        return self._whole(ordered)
