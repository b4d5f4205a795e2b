"""Runs a workload in this process without YATT's services, on one rank: for figures that need only its own code.

Consumes a workload's class and settings. Produces its metrics, and its state as a checkpoint would give it back.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from yatt_core.workloads.contract import (
    Columns,
    Draw,
    Metrics,
    Rows,
    RunFacts,
    Samples,
    SavedState,
    State,
    Workload,
)

FACTS = "facts.json"


class OneRank:
    """Implements `Ranks` for a single rank."""

    rank = 0
    count = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor."""
        return tensor

    def gathered(self, columns: Columns) -> tuple[dict[str, Any], ...]:
        """Returns the arrays."""
        return (dict(columns),)

    def share(self, total: int) -> range:
        """Returns all rows."""
        return range(total)


@dataclass(frozen=True)
class KeptTensors:
    """Implements `SavedTensors` with copies in memory."""

    tensors: Mapping[str, torch.Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes by name."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def whole(self, name: str) -> torch.Tensor:
        """Returns a tensor."""
        return self.tensors[name].clone()

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Returns rows of a tensor."""
        return self.tensors[name][start:stop].clone()


@dataclass(frozen=True)
class Kept(SavedState):
    """A state in memory, as a workload can load it."""

    weights: KeptTensors
    others: KeptTensors


def kept(state: State) -> Kept:
    """Returns a copy of a state that one rank holds."""
    return Kept(_copied(state.weights), _copied(state.others), copy.deepcopy(state.facts))


def keep_state(state: State, folder: Path) -> None:
    """Writes a state that one rank holds into a folder, the facts last."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = kept(state)
    save_file(dict(saved.weights.tensors), folder / "weights.safetensors")
    save_file(dict(saved.others.tensors), folder / "others.safetensors")
    (folder / FACTS).write_text(json.dumps(dict(saved.facts)))


def kept_state(folder: Path) -> Kept | None:
    """Returns the state that a folder keeps; None if there is none."""
    if not (folder / FACTS).exists():
        return None
    facts = json.loads((folder / FACTS).read_text())
    weights = KeptTensors(load_file(folder / "weights.safetensors"))
    return Kept(weights, KeptTensors(load_file(folder / "others.safetensors")), facts)


def _copied(named: Mapping[str, torch.Tensor | Rows]) -> KeptTensors:
    return KeptTensors(
        {name: (found.values if isinstance(found, Rows) else found).clone() for name, found in named.items()}
    )


def begun(kind: Callable[[RunFacts], Workload], inputs: Path, seed: int, iterations: int, **settings: Any) -> Workload:
    """Returns a workload that has begun; its inputs are built unless the folder exists."""
    workload = kind(RunFacts(seed=seed, settings=settings, iterations=iterations))
    if not inputs.exists():
        inputs.mkdir(parents=True)
        workload.build_inputs(inputs)
    workload.begin(inputs, OneRank())
    return workload


def train(workload: Workload, seed: int, first: int, last: int) -> Metrics:
    """Has a workload learn from the first to the last iteration, both included; returns the last one's metrics."""
    metrics: Metrics = {}
    for iteration in range(first, last + 1):
        draw = Draw(seed=seed, iteration=iteration, number=iteration - 1)
        columns = workload.draw(draw)
        if isinstance(workload, Samples):
            columns = workload.sample(columns, draw)
        metrics = workload.update(columns, draw)
    return metrics
