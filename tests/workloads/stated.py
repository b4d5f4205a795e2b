"""Workloads that say what they need, in round numbers; for tests of plans. None of them is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tests.workloads.counting import Counting
from yatt_core.workloads.contract import Columns, Draw, Needs, RankNeeds, SamplerNeeds

GB = 10**9


class StatedCounting(Counting):
    """Its model has 16 GB of weights. A setting `broken` names what is wrong with what it says."""

    on_device = True

    def needs(self, ranks: int, sampler_dtype: str | None) -> Needs:
        if self._broken == "needs":
            raise KeyError("layers")
        rank = RankNeeds(
            weights=16 * GB,
            optimizer=32 * GB // ranks,
            gradients=16 * GB // ranks,
            frozen=2 * GB,
            prepare=GB,
            learn=3 * GB,
            evaluate=4 * GB,
        )
        sampler = SamplerNeeds(weights=8 * GB, sent=6 * GB, frozen=GB, collect=5 * GB)
        return Needs(
            parameters=4 * GB,
            trained=2 * GB,
            state=48 * GB,
            rank=rank,
            sampler=None if sampler_dtype is None or self._broken == "sampler" else sampler,
            work={"image_steps": 12_000},
            on_device=self.on_device,
            assumed=("numbers are round",),
        )

    def begin_sampling(self, inputs: Path, dtype: str) -> None:
        raise NotImplementedError

    def sampling_weights(self) -> Mapping[str, torch.Tensor]:
        raise NotImplementedError

    def shards(self, columns: Columns) -> Sequence[slice]:
        raise NotImplementedError

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        raise NotImplementedError

    def sample_shard(self, columns: Columns, draw: Draw) -> Columns:
        raise NotImplementedError


class StatedOnHost(StatedCounting):
    """Leaves devices alone."""

    on_device = False
