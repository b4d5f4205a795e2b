"""Checkpoints as scenarios for a child process that is killed: three files of one writer, and the shares of two ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
from safetensors.numpy import save_file

from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.checkpoints.shares import CheckpointAttempt
from yatt_core.keys import checkpoint_folder
from yatt_core.protocols.engines import FrozenState
from yatt_core.wire.parts import TensorPart, contributed

FOLDER = str(checkpoint_folder(0, 10, 1))
IDENTITY = CheckpointIdentity("run", 0, 10, 1, "5" * 64, "3" * 64, audit_head="a" * 64)
NEEDED = 20_000


def write(folder: Path) -> None:
    """Writes the files as an engine's writer does."""
    save_file({"weight": np.arange(4000, dtype=np.float32)}, folder / "weights.safetensors")
    (folder / "schedule.json").write_text('{"step": 10}')
    (folder / "optimizer").mkdir()
    (folder / "optimizer" / "moments.bin").write_bytes(bytes(range(256)))


def publish(folder: Path, tell: Callable[[str], None]) -> None:
    """Publishes the checkpoint."""
    publish_checkpoint(folder, FOLDER, IDENTITY, write, NEEDED)
    tell("published")


TENSORS = {
    "a": np.arange(15, dtype=np.float32).reshape(5, 3),
    "b": np.arange(7, dtype=np.int64),
    "c": np.array(0.5, np.float32),
}


def state_of(rank: int, ranks: int = 2, iteration: int = 10) -> FrozenState:
    """Returns a rank's share of a checkpoint: rows of the first tensor, and what it contributes of the others."""
    everyone = tuple(range(ranks))
    first, last = (len(TENSORS["a"]) * place // ranks for place in (rank, rank + 1))
    rows = TENSORS["a"][first:last]
    parts = [TensorPart("a", TENSORS["a"].shape, (first, 0), rows, (rank,))]
    parts += [
        TensorPart(name, TENSORS[name].shape, (0,) * TENSORS[name].ndim, TENSORS[name], everyone) for name in "bc"
    ]
    mine = list(contributed(parts, rank))
    files = {"state.json": b'{"version": %d}' % iteration} if rank == 0 else {}
    return FrozenState(rank, ranks, {"weights": mine, "reference": mine}, files)


def other_state(rank: int) -> FrozenState:
    """Returns a rank's share of other tensors, as of a repeated update that is not exact."""
    state = state_of(rank)
    tensors = {name: [replace(part, values=part.values + 1) for part in parts] for name, parts in state.tensors.items()}
    return replace(state, tensors=tensors)


def attempt(folder: Path, name: str = "first") -> CheckpointAttempt:
    return CheckpointAttempt(folder, FOLDER, name, replace(IDENTITY, weights_digest=""))


def publish_shares(folder: Path, tell: Callable[[str], None], name: str = "first") -> None:
    """Writes the shares of both ranks, the later one first, and publishes the checkpoint."""
    both = attempt(folder, name)
    for rank in (1, 0):
        both.write(state_of(rank))
        tell(f"written-{rank}")
    both.publish(state_of(0), 0.0, Event())
    tell("published")


def write_share(folder: Path, tell: Callable[[str], None]) -> None:
    """Writes the share of the second rank."""
    attempt(folder).write(state_of(1))
    tell("written")
