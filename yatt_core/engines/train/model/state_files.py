"""The files that a torch trainer writes to a checkpoint: safetensors and one JSON file, no pickle.

- `weights.safetensors`: the state dict under Hugging Face names, tied tensors once
- `optimizer.safetensors`: the moments by parameter
- `adapters.safetensors`: low-rank adapters, if only they are trained; the state dict then holds the merged
  weights
- `critic.safetensors`, `critic_optimizer.safetensors`: weights and moments of a critic
- `reference.safetensors`: the policy of iteration 0, if the spec has a KL term
- `state.json`: version, optimizer steps of policy and critic, and the learning rate
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import safetensors.numpy

from yatt_core.durable import write_json
from yatt_core.errors import DataError

WEIGHTS, OPTIMIZER, ADAPTERS, CRITIC, CRITIC_OPTIMIZER, REFERENCE, STATE = (
    "weights.safetensors",
    "optimizer.safetensors",
    "adapters.safetensors",
    "critic.safetensors",
    "critic_optimizer.safetensors",
    "reference.safetensors",
    "state.json",
)

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The content of `state.json`.

    version: number of iterations learned.
    learning_rate: learning rate of the last iteration, for information only.
    """

    version: int
    optimizer_steps: int
    learning_rate: float
    critic_steps: int = 0


@dataclass(frozen=True, slots=True)
class CriticState:
    """A critic's weights and its optimizer's moments."""

    weights: Arrays
    moments: Arrays

    @property
    def bytes(self) -> int:
        """Size of weights and moments together."""
        return sum(array.nbytes for part in (self.weights, self.moments) for array in part.values())


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Everything that the next update depends on.

    reference: None if the spec has no KL term.
    adapters: None if all weights are trained.
    """

    facts: StateFacts
    weights: Arrays
    moments: Arrays
    reference: Arrays | None
    adapters: Arrays | None = None
    critic: CriticState | None = None

    def write(self, folder: Path) -> None:
        """Writes the files into an existing folder."""
        safetensors.numpy.save_file(self.weights, folder / WEIGHTS, metadata={"format": "pt"})
        safetensors.numpy.save_file(self.moments, folder / OPTIMIZER)
        if self.adapters is not None:
            safetensors.numpy.save_file(self.adapters, folder / ADAPTERS, metadata={"format": "pt"})
        if self.critic is not None:
            safetensors.numpy.save_file(self.critic.weights, folder / CRITIC)
            safetensors.numpy.save_file(self.critic.moments, folder / CRITIC_OPTIMIZER)
        if self.reference is not None:
            safetensors.numpy.save_file(self.reference, folder / REFERENCE, metadata={"format": "pt"})
        write_json(folder / STATE, asdict(self.facts))


def read_facts(folder: Path) -> StateFacts:
    """Reads a state's `state.json`. Raises `DataError` if it is missing or unreadable."""
    try:
        return StateFacts(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder / STATE}: is not a trainer state: {error}") from error


def read_state(folder: Path, with_reference: bool, with_adapters: bool) -> TrainerState:
    """Reads what `TrainerState.write` wrote. Raises `DataError` for a missing or unreadable file."""
    facts = read_facts(folder)
    reference = _load(folder / REFERENCE) if with_reference else None
    adapters = _load(folder / ADAPTERS) if with_adapters else None
    return TrainerState(facts, _load(folder / WEIGHTS), _load(folder / OPTIMIZER), reference, adapters)


def require_same(folder: Path, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Raises `DataError` unless a state's tensors have the expected names and shapes."""
    names = [name for name, shape in expected.items() if name in found and tuple(found[name]) != tuple(shape)]
    names = names or sorted(set(found) ^ set(expected))
    if names:
        raise DataError(f"{folder}: its weights do not match this model: {', '.join(names[:5])}")


def _load(path: Path) -> Arrays:
    try:
        arrays: Arrays = safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return arrays
