"""What a torch trainer's checkpoint contains besides tensors, and the check that its tensors fit a model.

`state.json` holds the version, the optimizer steps of policy and critic, and the learning rate; rank 0 writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from yatt_core.errors import DataError

STATE = "state.json"


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

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_facts(folder: Path) -> StateFacts:
    """Reads a state's `state.json`. Raises `DataError` if it is missing or unreadable."""
    try:
        return StateFacts(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder / STATE}: is not a trainer state: {error}") from error


def require_same(folder: Path, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    """Raises `DataError` unless a state's tensors have the expected names and shapes."""
    names = [name for name, shape in expected.items() if name in found and tuple(found[name]) != tuple(shape)]
    names = names or sorted(set(found) ^ set(expected))
    if names:
        raise DataError(f"{folder}: its weights do not match this model: {', '.join(names[:5])}")
