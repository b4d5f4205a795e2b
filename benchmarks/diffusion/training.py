"""The trainings that are measured: the workload `ShapeDrawing`, driven as a trainer's only rank would drive it.

Consumes a seed, settings and a folder. Produces the figures of pre-training, of the policy and of the control, which the folder
keeps; a training that is stopped goes on from its latest kept state.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import progress
from benchmarks.workloads.alone import Kept, begun, keep_state, kept_state, train
from benchmarks.workloads.found import kept_or_measured
from yatt_core.workloads.contract import Draw, Metrics, Workload
from yatt_core.workloads.diffusion.drawing import ShapeDrawing
from yatt_core.workloads.diffusion.shapes import COLOURS

Settings = dict[str, Any]
SETTINGS: Settings = {"keep": "latents"}
"""The workload's own settings, chosen on seed 0. Sealed latents spare the update the sampling, and change no bit of it."""
UPDATES = 240
UNET: Settings = {
    "network": "unet",
    "heads": 2,
    "head_width": 16,
    "patch": 2,
    "layers": 1,
    "pretraining": 300,
    "group": 8,
    "held_out": 2,
    "evaluation_steps": 8,
}
"""A UNet that is small enough for one core."""
KEPT_EVERY = 20
"""Updates between two kept states."""
INPUTS = "inputs"
GAP = "log_probability_gap"


class ShuffledDrawing(ShapeDrawing):
    """The control: the same advantages in a random order over all images."""

    def advantages(self, rewards: torch.Tensor, draw: Draw) -> torch.Tensor:
        """See `ShapeDrawing`."""
        own = super().advantages(rewards, draw)
        generator = torch.Generator().manual_seed(draw.seed_of("shuffled"))
        return own[torch.randperm(len(own), generator=generator)]


class ColourDrawing(ShapeDrawing):
    """A task for a network that was hardly trained before: images whose mean colour is the named one."""

    def rewards(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """Returns 1 - the mean squared distance of an image's mean colour to the named one, [B]."""
        wanted = torch.tensor([COLOURS[prompt.split()[0]] for prompt in prompts], dtype=images.dtype)
        return 1 - (images.clamp(-1, 1).mean((2, 3)) - wanted).square().mean(1)

    def evaluate(self) -> Metrics:
        """Returns the mean reward of held-out images as `accuracy`, beside what `ShapeDrawing` says."""
        found = dict(super().evaluate())
        prompts, images = self.held_out()
        return found | {"accuracy": self.rewards(images, prompts).mean().item()}


@dataclass(frozen=True)
class Course:
    """How a method is tried: by which workload, with which settings, in how many updates."""

    kind: type[ShapeDrawing]
    settings: Settings
    updates: int


COURSES: Mapping[str, Course] = {
    "grpo": Course(ShapeDrawing, SETTINGS, UPDATES),
    "nft": Course(ShapeDrawing, SETTINGS | {"method": "nft"}, 40),
    "dpo": Course(ShapeDrawing, SETTINGS | {"method": "dpo", "noisings": 8, "group": 8, "rate": 5e-5}, 60),
    "ddpo": Course(ColourDrawing, SETTINGS | {"method": "ddpo", **UNET}, 30),
}
"""By method. Those of the other methods than GRPO are short, and were chosen on seed 1."""


def pretrained(
    folder: Path, seed: int, settings: Settings, kind: type[ShapeDrawing] = ShapeDrawing
) -> dict[str, float]:
    """Returns the figures of the pre-trained network, which is left in `INPUTS`."""

    def measure() -> dict[str, float]:
        shutil.rmtree(folder / INPUTS, ignore_errors=True)
        began = time.process_time()
        workload = begun(kind, folder / INPUTS, seed=seed, iterations=1, **settings)
        figures = _evaluated(workload)
        seconds = time.process_time() - began
        parameters = sum(weight.numel() for weight in workload.state().weights.values() if torch.is_tensor(weight))
        return {**figures, "seconds": seconds, "parameters": parameters}

    return kept_or_measured(folder / "start.json", measure)


def trained(kind: type[ShapeDrawing], folder: Path, *, seed: int, updates: int, settings: Settings) -> dict[str, float]:
    """Returns the figures of a training from `INPUTS` on.

    reward, valid: what the last evaluation says.
    log_probability_gap: the largest of all updates; 0 for a method without log-probabilities.
    seconds: of the processor, for updates and evaluation.
    """

    def measure() -> dict[str, float]:
        return _trained(kind=kind, folder=folder, seed=seed, updates=updates, settings=settings)

    return kept_or_measured(folder / f"{kind.__name__}.json", measure)


def final_state(folder: Path, updates: int) -> Kept:
    """Returns the policy's state after its training."""
    found = kept_state(_state_folder(folder, ShapeDrawing, updates))
    assert found is not None, "the training has been finished"
    return found


def _trained(kind: type[ShapeDrawing], folder: Path, seed: int, updates: int, settings: Settings) -> dict[str, float]:
    workload = begun(kind, folder / INPUTS, seed=seed, iterations=updates, **settings)
    stops = [*range(KEPT_EVERY, updates, KEPT_EVERY), updates]
    done = 0
    gap = 0.0
    seconds = 0.0
    for stop in reversed(stops):
        if (kept := kept_state(_state_folder(folder, kind, stop))) is not None:
            workload.load(kept)
            done = stop
            gap = kept.facts[GAP]
            seconds = kept.facts["seconds"]
            break
    for stop in stops:
        began = time.process_time()
        rewards = []
        for update in range(done + 1, stop + 1):
            metrics = train(workload, seed, update, update)
            gap = max(gap, metrics.get(GAP, 0.0))
            rewards.append(metrics["reward"])
        if not rewards:
            continue
        seconds += time.process_time() - began
        keep_state(replace(workload.state(), facts={GAP: gap, "seconds": seconds}), _state_folder(folder, kind, stop))
        done = stop
        progress(
            f"seed {seed}, {kind.__name__}: update {stop}, reward {sum(rewards) / len(rewards):.3f}, {seconds:.0f} s"
        )
    began = time.process_time()
    figures = _evaluated(workload)
    return {**figures, GAP: gap, "seconds": seconds + time.process_time() - began}


def _evaluated(workload: Workload) -> dict[str, float]:
    metrics: Metrics = workload.evaluate()
    return {"reward": metrics["accuracy"], "valid": metrics["valid"]}


def _state_folder(folder: Path, kind: type[ShapeDrawing], update: int) -> Path:
    return folder / kind.__name__ / f"{update:04d}"
