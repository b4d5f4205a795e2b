"""Checks that fresh processes compute the same bits: what the torch engine samples, and what trainers learn.

Consumes a type and a trainer. Two processes do the same at the same time, each with the GPU's first context of its own.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import VISIBLE, Alone, course_of, started
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.work import TRAINERS, Work, model_in, request_of, spec_of
from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.engines.registry import build_rollout_engine

UPDATES = 2
PROCESSES = 2
ROLLOUT = "rollout"


def rollout_repeats(place: Place, dtype: str) -> Finding:
    """Compares the tokens and log-probabilities of two processes."""
    return _compared(_bits(place, dtype, ROLLOUT))


def trainer_repeats(place: Place, dtype: str, trainer: str) -> Finding:
    """Compares the norms of gradients and the weights of two processes."""
    return _compared(_bits(place, dtype, trainer))


def _compared(digests: tuple[str, ...]) -> Finding:
    same = len(set(digests)) == 1
    return Finding(same, "the same digests in both" if same else "the digests differ")


@cache
def _bits(place: Place, dtype: str, part: str) -> tuple[str, ...]:
    """Returns what a part of a run computes in each process."""
    work = sizes_at(place).bits
    model = model_in(place.folder, work)
    folder = new_folder(place, f"repeats-{dtype}-{part}")
    return tuple(on_ranks(PROCESSES, _digest, place.devices[0], folder, model, work, dtype, part))


def _digest(rank: Rank, device: str, folder: Path, model: Path, work: Work, dtype: str, part: str) -> str:
    os.environ[VISIBLE] = device  # before anything touches a GPU
    own = folder / f"{rank.rank}"
    own.mkdir()
    if part != ROLLOUT:
        spec = spec_of(work, TRAINERS[part], dtype, exact=True, learning_rate=1e-3)
        return course_of(seat=Alone(), spec=spec, folder=own, model=model, work=work, updates=UPDATES).digest
    # Not exact: in a run a trainer is in another process, and what it asks of the kernels does not reach the sampler.
    spec = spec_of(work, None, dtype)
    engine = build_rollout_engine(spec, str(model), model)
    engine.update_weights(dict(started(Alone(), spec, own, model).stream_weights()), 0)
    result = engine.generate(request_of(work, 1))
    return hashlib.sha256(result.tokens.tobytes() + result.log_probs.tobytes()).hexdigest()
