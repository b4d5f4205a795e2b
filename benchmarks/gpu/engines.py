"""Checks of engines on a GPU against the torch trainer on cores, up to rounding.

Consumes the GPU and the cores of this machine; the latter in a process of its own, which sees no GPU.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.experience import seal_responses
from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import CORES, VISIBLE, Alone, Course, course_of, courses_on, started
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.work import TRAINERS, TWO_RANKS, model_in, request_of, spec_of
from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.train.model.forward import assemble
from yatt_core.experience.batch import load_batch
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec

UPDATES = 2
LEARNING_RATE = 1e-3
TOLERANCE = 1e-3
"""Of norms of gradients, relative, and of weights, absolute: a few roundings through the steps of AdamW."""
MEAN_GAP = {"float32": 1e-4, "bfloat16": 0.05}
"""Largest mean difference of a token's log-probability from that of float32."""
MICRO_BATCHES = 4


def trainer_learns(place: Place, trainer: str) -> Finding:
    """Compares a trainer of one rank on this process's device with the torch trainer on cores."""
    work = sizes_at(place).bits
    spec = spec_of(work, TRAINERS[trainer], "float32", learning_rate=LEARNING_RATE)
    folder = new_folder(place, trainer)
    model = model_in(place.folder, work)
    found = course_of(seat=Alone(), spec=spec, folder=folder, model=model, work=work, updates=UPDATES)
    return _compared(found, _on_cores(place))


def two_ranks_learn(place: Place, trainer: str) -> Finding:
    """Compares a trainer of two ranks with the torch trainer on cores."""
    work = sizes_at(place).bits
    spec = spec_of(work, TWO_RANKS[trainer], "float32", learning_rate=LEARNING_RATE)
    found = courses_on(
        devices=place.devices[:2],
        spec=spec,
        folder=new_folder(place, f"{trainer}-two"),
        model=model_in(place.folder, work),
        work=work,
        updates=UPDATES,
    )
    return _compared(found[0], _on_cores(place))


@cache
def _on_cores(place: Place) -> Course:
    work = sizes_at(place).bits
    (found,) = courses_on(
        devices=(CORES,),
        spec=spec_of(work, None, "float32", learning_rate=LEARNING_RATE),
        folder=new_folder(place, "cores"),
        model=model_in(place.folder, work),
        work=work,
        updates=UPDATES,
    )
    return found


def _compared(found: Course, expected: Course) -> Finding:
    """Compares the norms of gradients, and the weights."""
    norms = float((np.abs(np.asarray(found.norms) - expected.norms) / expected.norms).max())
    if found.weights.keys() != expected.weights.keys():
        return Finding(False, f"gradient norms differ by {norms:.1e}, and the tensors have other names")
    weights = max(float(np.abs(found.weights[name] - array).max()) for name, array in expected.weights.items())
    return Finding(
        holds=max(norms, weights) <= TOLERANCE,
        said=f"gradient norms differ by {norms:.1e}, weights by {weights:.1e} at most, of {TOLERANCE:g} allowed",
        figures={"norm_gap": norms, "weight_gap": weights},
    )


def rollout_is_right(place: Place, dtype: str) -> Finding:
    """Compares the log-probabilities of sampled tokens with what the torch trainer computes of them on cores."""
    work = sizes_at(place).bits
    model = model_in(place.folder, work)
    folder = new_folder(place, f"rollout-{dtype}")
    engine = build_rollout_engine(spec_of(work, None, dtype), str(model), model)
    weights = started(Alone(), spec_of(work, None, "float32"), folder, model)
    engine.update_weights(dict(weights.stream_weights()), 0)
    request = request_of(work, 1)
    task = seal_responses(folder, 1, request, engine.generate(request))
    (gaps,) = on_ranks(1, _gaps, spec_of(work, None, "float32"), folder, model, task)
    mean = float(gaps.mean())
    said = f"{len(gaps)} tokens differ by {mean:.1e} on average, of {MEAN_GAP[dtype]:g} allowed, and by {gaps.max():.1e} at most"
    return Finding(mean <= MEAN_GAP[dtype], said, {"gap_mean": mean, "gap_max": float(gaps.max())})


def _gaps(_: Rank, spec: RunSpec, folder: Path, model: Path, task: BatchTask) -> npt.NDArray[np.float64]:
    os.environ[VISIBLE] = CORES  # before anything touches a GPU
    trainer = started(Alone(), spec, folder, model)
    batch = load_batch(folder, task.shards)
    found = []
    for part in np.array_split(np.arange(len(batch)), MICRO_BATCHES):
        read = assemble(batch, part)
        (scores,) = trainer.policy.forward.score([read])
        found.append(np.abs(scores.astype(np.float64) - batch.log_probs_sampler[read.positions]))
    return np.concatenate(found)
