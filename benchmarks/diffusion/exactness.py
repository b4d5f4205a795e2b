"""How exact an iteration is: the trainer's log-probabilities against the sampler's, and all of it again in a fresh process.

Consumes a policy and the seeds of an iteration. The fresh process is this module, `python -m benchmarks.diffusion.exactness
FOLDER`: it knows the folder's weights, words and seeds, draws in another order, so that each image has other neighbours, and
prints digests.
"""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.diffusion.recipe import Policy, Recipe, advantages_of
from yatt_core.workloads.diffusion.conditions import WordTable, load_words, save_words
from yatt_core.workloads.diffusion.networks import load_network, save_network
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.trajectories import (
    SamplingPlan,
    Trajectory,
    joined,
    log_probabilities_of,
    sample,
    steps_again,
)

MICRO_BATCHES = (1, 2, 3, 5, 16, 96)
"""Images of the trainer's micro-batches that `any_batch` tries."""


def log_probability_gap(
    recipe: Recipe, policy: nn.Module, words: WordTable, *, seeds: list[int], dtype: torch.dtype
) -> dict[str, float]:
    """Returns the largest differences between log-probabilities of sampler and trainer.

    `same`: in batches of the sampler's shape. `any_batch`: in micro-batches of other sizes, one image included.
    """
    network = nn.Module.to(copy.deepcopy(policy), dtype)
    predict = Predictor(network, words.encode(recipe.prompts))
    plan = SamplingPlan(recipe.plan.shape, recipe.steps, recipe.plan.window, dtype)
    parts = [slice(first, first + recipe.rows) for first in range(0, len(seeds), recipe.rows)]
    drawn = joined([sample(predict.rows(part), recipe.process, seeds[part], plan) for part in parts])

    def gap(rows: int) -> float:
        found = []
        for first in range(0, len(seeds), rows):
            part = drawn.rows(slice(first, first + rows))
            steps = steps_again(predict.rows(slice(first, first + rows)), recipe.process, part)
            found.append(log_probabilities_of(steps, part).detach())
        return (torch.cat(found) - drawn.log_probabilities).abs().max().item()

    return {"same": gap(recipe.rows), "any_batch": max(gap(rows) for rows in MICRO_BATCHES)}


def replays(recipe: Recipe, network: nn.Module, words: WordTable, *, seeds: list[int], folder: Path) -> bool:
    """Returns whether a fresh process finds every latent, and the weights after the update, with the same bits."""
    save_network(network, folder / "network")
    save_words(words, folder / "words")
    (folder / "iteration.json").write_text(json.dumps({"recipe": asdict(recipe), "seeds": seeds}))
    drawn = Policy(recipe, network, words).draw(seeds)
    _store(drawn, folder / "trajectory.safetensors")
    learner = Policy(recipe, copy.deepcopy(network), words)
    stored = _stored(folder / "trajectory.safetensors", drawn.window)
    learner.learn(stored, advantages_of(recipe, stored))
    here = [_digest([*drawn.latents, drawn.log_probabilities]), _digest(learner.network.state_dict().values())]
    command = [sys.executable, "-m", "benchmarks.diffusion.exactness", str(folder)]
    there = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return here == there


def main(folder: Path) -> None:
    """Prints the digest of an iteration's trajectories and that of the weights after its update."""
    torch.set_num_threads(1)
    stated = json.loads((folder / "iteration.json").read_text())
    recipe = Recipe(**stated["recipe"])
    words = load_words(folder / "words")
    network = load_network(folder / "network", torch.float32)
    seeds = stated["seeds"]
    order = torch.arange(len(seeds) - 1, -1, -1)
    predict = Predictor(network, words.encode(recipe.prompts))
    batches = [order[first : first + recipe.rows] for first in range(0, len(seeds), recipe.rows)]
    parts = [sample(predict.rows(rows), recipe.process, [seeds[row] for row in rows], recipe.plan) for rows in batches]
    drawn = joined(parts).rows(order.argsort())
    learner = Policy(recipe, network, words)
    learner.learn(drawn, advantages_of(recipe, drawn))
    print(_digest([*drawn.latents, drawn.log_probabilities]), _digest(learner.network.state_dict().values()))


def _store(trajectory: Trajectory, path: Path) -> None:
    latents = {f"latents.{step:03d}": tensor for step, tensor in enumerate(trajectory.latents)}
    save_file({**latents, "log_probabilities": trajectory.log_probabilities}, path)


def _stored(path: Path, window: range) -> Trajectory:
    tensors = load_file(path)
    log_probabilities = tensors.pop("log_probabilities")
    return Trajectory(tuple(tensors[name].clone() for name in sorted(tensors)), log_probabilities, window)


def _digest(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
