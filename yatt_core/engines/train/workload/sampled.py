"""A class of the public contract that samplers sample for: as `OwnWorkload`, and its weights go to them after each update.

Consumes what `OwnWorkload` does. Produces the weights that samplers need, which the class names, each rank its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt
import torch

from yatt_core.engines.train.workload.own import OwnWorkload
from yatt_core.engines.train.workload.state import parts_of, whole_tensor
from yatt_core.wire.parts import TensorPart, contributed
from yatt_core.workloads.contract import Rows, SamplesApart
from yatt_core.workloads.finding import called


class SampledWorkload(OwnWorkload):
    """Implements `SendsWeights` beside what `OwnWorkload` does."""

    @property
    def in_step(self) -> bool:
        """False: each rank sends parts of its own."""
        return False

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the weights for samplers whole, in the order of their names; every rank must consume all of them."""
        named = self._sampling_weights()
        for name in sorted(named):
            yield name, whole_tensor(name, named[name], self._collective)

    def sync_parts(self, outlines: bool = False) -> Iterator[TensorPart[torch.Tensor]]:
        """Yields this rank's rows of the weights for samplers, and its portion of tensors that all ranks hold."""
        rank = self._collective.rank
        yield from contributed(parts_of(self._sampling_weights(), rank, self._collective.ranks), rank)

    def _sampling_weights(self) -> Mapping[str, torch.Tensor | Rows]:
        workload = self._begun()
        assert isinstance(workload, SamplesApart), "classes without its methods are refused with workload.sampled_by"
        found: Mapping[str, torch.Tensor | Rows] = called(self._spec, workload.sampling_weights)
        return found
