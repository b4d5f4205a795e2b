"""Names and seeds that are the same in every process: idempotency keys and counter-based seeds.

Seeds are functions of (spec seed, branch number, iteration, prompt ordinal, sample, turn) only, so that
workers, time and attempts never change a result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

TERM = r"\.t(\d+)"
"""Pattern for the part of a folder's name that states the term under which it was written."""
SHARD_NAME = r"w\d+-s\d+" + TERM
"""Pattern of the name of a shard's folder (`shard_folder`), without the writer's number."""
CHECKPOINT_NAME = r"b\d+-i\d+" + TERM
"""Pattern of the name of a checkpoint's folder (`checkpoint_folder`)."""


@dataclass(frozen=True, slots=True, order=True)
class WorkKey:
    """Idempotency key of one unit of work; the term is passed separately as the fence and is never part of the key."""

    run: str
    branch: int
    iteration: int
    phase: str
    wave: int = 0
    shard: int = 0

    def __str__(self) -> str:
        return f"{self.run}/b{self.branch}/i{self.iteration}/{self.phase}/w{self.wave}/s{self.shard}"


def wave_name(key: WorkKey) -> str:
    """Returns the name that the dispatcher uses for a shard's wave."""
    return f"b{key.branch}.i{key.iteration}.w{key.wave}"


def iteration_folder(branch: int, iteration: int) -> PurePosixPath:
    """Returns the folder of an iteration's experience, relative to the run folder."""
    return PurePosixPath(f"experience/b{branch:03d}/i{iteration:06d}")


def shard_folder(key: WorkKey, term: int, writer: int = 0) -> PurePosixPath:
    """Returns the folder of one logical shard written under one term, relative to the run folder.

    writer: number of processes that have already written this shard under this term; each has its own folder.
    """
    suffix = f".{writer}" if writer else ""
    return iteration_folder(key.branch, key.iteration) / f"w{key.wave:02d}-s{key.shard:04d}.t{term:04d}{suffix}"


CHECKPOINTS = PurePosixPath("checkpoints")
"""The folder of a run's checkpoints, relative to the run folder."""


def checkpoint_folder(branch: int, iteration: int, term: int) -> PurePosixPath:
    """Returns the folder of a checkpoint, relative to the run folder."""
    return CHECKPOINTS / f"b{branch:03d}-i{iteration:06d}.t{term:04d}"


def stable_seed(purpose: str, *parts: int) -> int:
    """Returns a 64-bit seed that depends only on the purpose and the parts, on every machine and Python version."""
    text = ":".join((purpose, *map(str, parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def sample_seed(seed: int, branch: int, iteration: int, ordinal: int, sample: int, turn: int = 0) -> int:
    """Returns the seed of the noise used to sample one turn of a response.

    The last part of the seed is always 0, so that runs already on record can be reproduced.
    """
    return stable_seed("sample", seed, branch, iteration, ordinal, sample, turn, 0)


def evaluation_seed(seed: int, task: int, sample: int, turn: int) -> int:
    """Returns the seed of the noise used to sample one turn of an answer to a held-out task.

    It is the same in each iteration, so that two evaluations differ by their weights alone.
    """
    return stable_seed("evaluation", seed, task, sample, turn)
