"""How exact an iteration is: the trainer's log-probabilities against the sampler's, and all of it again in a fresh process.

Consumes a finished training. The fresh process is this module, `python -m benchmarks.diffusion.exactness FOLDER`: it knows
weights and seeds from the folder alone, draws in another order, so that each image has other neighbours, learns from the seeds,
and prints digests.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from benchmarks.diffusion.training import GAP, INPUTS, Settings, final_state
from benchmarks.workloads.alone import Kept, begun, keep_state, kept, kept_state
from yatt_core.workloads.columns import decode_columns, encode_columns
from yatt_core.workloads.contract import Columns, Draw, State
from yatt_core.workloads.diffusion.conditions import load_words
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.drawing_settings import DrawingSettings
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.networks import CONFIG, WEIGHTS, load_network
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE
from yatt_core.workloads.diffusion.trajectories import (
    SamplingPlan,
    joined,
    log_probabilities_of,
    sample,
    steps_again,
)

MICRO_BATCHES = (1, 2, 3, 5, 16, 96)
"""Images of the trainer's micro-batches that `any_batch` tries."""
STATE = "state"
COLUMNS = "columns.safetensors"


def measured_exactness(folder: Path, seed: int, updates: int, settings: Settings) -> dict[str, float]:
    """Returns the gaps of log-probabilities, and whether a fresh process finds an iteration again.

    gap, gap_any_batch: in float32, in batches of the sampler's shape and in micro-batches of other sizes, one image included.
    gap_bfloat16, gap_any_batch_bfloat16: the same for the network in bfloat16.
    digests_equal: 1 if every latent and the state after the update have the same bits.
    """
    state = final_state(folder, updates)
    draw = Draw(seed=seed, iteration=updates + 1, number=updates)
    sampler = _workload(folder, seed, state, settings)
    columns = sampler.sample(sampler.draw(draw), draw)
    chosen = DrawingSettings.model_validate(settings)
    exact = _gaps(folder=folder, state=state, columns=columns, settings=chosen, dtype=torch.float32)
    rounded = _gaps(folder=folder, state=state, columns=columns, settings=chosen, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as scratch:
        equal = _replays(
            folder=folder, scratch=Path(scratch), columns=columns, draw=draw, state=state, settings=settings
        )
        same = sampler.update(columns, draw)[GAP]
    return {
        "gap": max(same, exact[0]),
        "gap_any_batch": exact[1],
        "gap_bfloat16": rounded[0],
        "gap_any_batch_bfloat16": rounded[1],
        "digests_equal": float(equal),
    }


def main(folder: Path) -> None:
    """Prints the digest of an iteration's trajectories and that of the state after its update."""
    torch.set_num_threads(1)
    stated = json.loads((folder / "iteration.json").read_text())
    draw = Draw(**stated["draw"])
    state = kept_state(folder / STATE)
    assert state is not None, "the first process has written it"
    inputs = Path(stated["inputs"])
    sampler = _workload(inputs, draw.seed, state, {**stated["settings"], "keep": "latents"})
    drawn = {name: column[::-1] for name, column in sampler.draw(draw).items()}
    columns = {name: column[::-1] for name, column in sampler.sample(drawn, draw).items()}
    learner = _workload(inputs, draw.seed, state, {**stated["settings"], "keep": "seeds"})
    learner.update({name: column for name, column in columns.items() if name != "latents"}, draw)
    print(_trajectory_digest(columns), _state_digest(learner.state()))


def _replays(folder: Path, scratch: Path, columns: Columns, draw: Draw, state: Kept, settings: Settings) -> bool:
    """Returns whether a fresh process finds the latents, and from seeds the state that an update from stored ones gives."""
    learner = _workload(folder, draw.seed, state, settings)
    keep_state(learner.state(), scratch / STATE)
    stated = {
        "inputs": str(folder.absolute()),
        "settings": dict(settings),
        "draw": {"seed": draw.seed, "iteration": draw.iteration, "number": draw.number},
    }
    (scratch / "iteration.json").write_text(json.dumps(stated))
    (scratch / COLUMNS).write_bytes(encode_columns(columns, COLUMNS))
    stored = decode_columns((scratch / COLUMNS).read_bytes(), COLUMNS)
    learner.update(stored, draw)
    here = [_trajectory_digest(stored), _state_digest(learner.state())]
    command = [sys.executable, "-m", "benchmarks.diffusion.exactness", str(scratch)]
    there = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return here == there


def _gaps(
    folder: Path, state: Kept, columns: Columns, settings: DrawingSettings, dtype: torch.dtype
) -> tuple[float, float]:
    """Returns the gaps of the network in a dtype: at the sampler's batch shape, and at any, which the workload may refuse."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / CONFIG).write_bytes((folder / INPUTS / CONFIG).read_bytes())
        save_file(dict(state.weights.tensors), place / WEIGHTS, metadata={"format": "pt"})
        network = load_network(place, dtype)
    prompts = [PROMPTS[number] for number in columns["prompt"].tolist()]
    seeds = np.array(columns["seed"]).view(np.uint64).tolist()
    predict = Predictor(network, load_words(folder / INPUTS).encode(prompts))
    process = FlowProcess(settings.noise_level)
    plan = SamplingPlan(SHAPE, settings.steps, range(settings.window), dtype)
    drawn = joined(
        [sample(predict.rows(part), process, seeds[part], plan) for part in _parts(len(seeds), settings.rows)]
    )

    def gap(rows: int) -> float:
        parts = _parts(len(seeds), rows)
        found = [
            log_probabilities_of(steps_again(predict.rows(part), process, drawn.rows(part)), drawn.rows(part)).detach()
            for part in parts
        ]
        return (torch.cat(found) - drawn.log_probabilities).abs().max().item()

    return gap(settings.rows), max(gap(rows) for rows in MICRO_BATCHES)


def _parts(count: int, rows: int) -> list[slice]:
    return [slice(first, first + rows) for first in range(0, count, rows)]


def _workload(folder: Path, seed: int, state: Kept, settings: Settings) -> ShapeDrawing:
    workload = begun(ShapeDrawing, folder / INPUTS, seed=seed, iterations=1, **settings)
    assert isinstance(workload, ShapeDrawing)
    workload.load(state)
    return workload


def _trajectory_digest(columns: Columns) -> str:
    return _digest([columns["latents"], columns["log_probability"]])


def _state_digest(state: State) -> str:
    saved = kept(state)
    named = [*sorted(saved.weights.tensors.items()), *sorted(saved.others.tensors.items())]
    return _digest(tensor.numpy() for _, tensor in named)


def _digest(arrays: Iterable[npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
