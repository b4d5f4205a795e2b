"""Names and seeds of things, the same in every process: idempotency keys and counter-based seeds.

Seeds are functions of (spec seed, branch number, iteration, prompt ordinal, sample, turn, judgement) and nothing else, so
that workers, time and attempts never change a result.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True, order=True)
class WorkKey:
    """Idempotency key of one piece of work; the term travels beside it as the fence, never in it."""

    run: str
    branch: int
    iteration: int
    phase: str
    wave: int = 0
    shard: int = 0

    def __str__(self) -> str:
        return f"{self.run}/b{self.branch}/i{self.iteration}/{self.phase}/w{self.wave}/s{self.shard}"


def wave_name(key: WorkKey) -> str:
    """Name of a shard's wave, as its dispatcher knows it."""
    return f"b{key.branch}.i{key.iteration}.w{key.wave}"


def iteration_folder(branch: int, iteration: int) -> PurePosixPath:
    """Folder of an iteration's experience, relative to the run folder."""
    return PurePosixPath(f"experience/b{branch:03d}/i{iteration:06d}")


def shard_folder(key: WorkKey, term: int, writer: int = 0) -> PurePosixPath:
    """Folder of one logical shard as written under one term, relative to the run folder.

    writer: number of those who wrote at the shard under this term before; each has a folder of its own.
    """
    suffix = f".{writer}" if writer else ""
    return iteration_folder(key.branch, key.iteration) / f"w{key.wave:02d}-s{key.shard:04d}.t{term:04d}{suffix}"


def checkpoint_folder(branch: int, iteration: int, term: int) -> PurePosixPath:
    """Folder of a checkpoint, relative to the run folder."""
    return PurePosixPath(f"checkpoints/b{branch:03d}-i{iteration:06d}.t{term:04d}")


def stable_seed(purpose: str, *parts: int) -> int:
    """A 64-bit seed that depends on the purpose and the parts alone, on every machine and version of Python."""
    text = ":".join((purpose, *map(str, parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def sample_seed(
    seed: int, branch: int, iteration: int, ordinal: int, sample: int, turn: int = 0, judgement: int = 0
) -> int:
    """Seed of the noise that draws one response (or one judgement of it)."""
    return stable_seed("sample", seed, branch, iteration, ordinal, sample, turn, judgement)
