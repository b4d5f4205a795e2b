"""A run's prompts, read one at a time from its inputs folder; a corpus is never held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.inputs.demonstrations import take_demonstrations
from yatt_core.inputs.manifest import DEMONSTRATIONS, HELD_OUT, PROBE, TRAIN, read_manifest
from yatt_core.inputs.pools import POOLS, read_pools
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.stream import Prompt, apportion, epoch_order, locate
from yatt_core.protocols.receipts import PromptRef
from yatt_core.spec.run import RunSpec


class Inputs:
    """A run's prompts, read from its inputs folder."""

    def __init__(self, folder: Path, spec: RunSpec, manifest: Mapping[str, Any]) -> None:
        self._folder = folder
        self._seed = spec.seed
        self._weights = [source.weight for source in spec.data.sources]
        self.train_sizes: tuple[int, ...] = tuple(manifest["train_sizes"])
        self._fitting_shares: tuple[int, ...] = tuple(manifest.get(DEMONSTRATIONS, ()))
        self._starts = np.concatenate([[0], np.cumsum(self.train_sizes)])
        self._train = PromptFile(folder / TRAIN)
        self._pools = read_pools(folder, len(manifest[POOLS])) if POOLS in manifest else []
        self._orders: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}

    @classmethod
    def open(cls, folder: Path, spec: RunSpec) -> Inputs:
        """Opens the inputs that `materialise` built and verified. Raises as `read_manifest` does."""
        return cls(folder, spec, read_manifest(folder, spec))

    def prompt(self, reference: PromptRef) -> Prompt:
        """Returns the prompt to which a reference points."""
        pool = reference.source
        size = len(self._pools[pool]) if self._pools else self.train_sizes[pool]
        epoch, place = locate(reference.position, size)
        row = int(self._order(pool, epoch, size)[place])
        return self._train[int(self._pools[pool][row])] if self._pools else self._training_prompt(pool, row)

    @cached_property
    def held_out(self) -> Sequence[Prompt]:
        """The evaluation tasks, in a fixed order."""
        return tuple(PromptFile(self._folder / HELD_OUT))

    @cached_property
    def probe(self) -> Sequence[Prompt]:
        """The training-side tasks that determine when SFT stops."""
        return tuple(PromptFile(self._folder / PROBE))

    def demonstrations(self, count: int | None) -> Sequence[Prompt]:
        """Returns the prompts that SFT learns from. Raises as `take_demonstrations` does.

        count: number of demonstrations; None: as many as were recorded when the inputs were built.
        """

        def first(source: int, share: int) -> list[Prompt]:
            return [self._training_prompt(source, index) for index in range(min(share, self.train_sizes[source]))]

        shares = self._fitting_shares if count is None else apportion(count, self._weights)
        return take_demonstrations(shares, first)

    def _training_prompt(self, source: int, index: int) -> Prompt:
        return self._train[int(self._starts[source]) + index]

    def _order(self, source: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
        """Returns the order of a source's prompts in an epoch; for each source or pool, only the last order used is cached."""
        kept = self._orders.get(source)
        if kept is None or kept[0] != epoch:
            kept = (epoch, epoch_order(self._seed, source, epoch, size))
            self._orders[source] = kept
        return kept[1]
