"""The measured recipe: a small flow model learns shapes with some wrong captions, then Flow-GRPO makes it draw what was asked.

Consumes a recipe and a seed, from which all randomness comes. Produces trained networks, and evaluations of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from yatt_core.keys import stable_seed
from yatt_core.workloads.diffusion.conditions import WordTable, make_words
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.networks import TRANSFORMER, make_network
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.pretraining import PretrainingSettings, logit_normal_times, pretrain
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE, SIDE, WORDS, ShapeScores, drawn_batch, score
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, Trajectory, joined, sample
from yatt_core.workloads.diffusion.updates import GrpoSettings, UpdateFigures, accumulate_gradients, group_advantages

PATCH = 4


@dataclass(frozen=True)
class Recipe:
    """What was chosen on seed 0.

    heads, head_width, layers: of the transformer.
    word_width: numbers of a word's vector.
    pretraining: steps before the policy's training.
    wrong: share of captions drawn at random there.
    updates: optimizer steps of the policy, one a batch.
    group: images of a prompt in a batch.
    steps, window: steps of a trajectory, and how many of them, from the first, are stochastic.
    rows: images of the batches in which a network computes.
    held_out: images of a prompt in an evaluation.
    """

    heads: int = 4
    head_width: int = 24
    layers: int = 3
    word_width: int = 32
    pretraining: int = 900
    wrong: float = 0.25
    updates: int = 160
    group: int = 16
    steps: int = 6
    window: int = 2
    noise_level: float = 0.7
    rate: float = 1e-4
    clip: float = 1e-3
    rows: int = 64
    evaluation_steps: int = 16
    held_out: int = 32

    @property
    def process(self) -> FlowProcess:
        """The flow that is sampled."""
        return FlowProcess(self.noise_level)

    @property
    def plan(self) -> SamplingPlan:
        """How training samples."""
        return SamplingPlan(SHAPE, self.steps, range(self.window))

    @property
    def prompts(self) -> list[str]:
        """The prompts of a batch, in groups."""
        return [prompt for prompt in PROMPTS for _ in range(self.group)]


def network_settings(recipe: Recipe) -> dict[str, Any]:
    """Returns the arguments of diffusers' class."""
    width = recipe.heads * recipe.head_width
    return {
        "sample_size": SIDE,
        "patch_size": PATCH,
        "in_channels": SHAPE[0],
        "out_channels": SHAPE[0],
        "num_layers": recipe.layers,
        "attention_head_dim": recipe.head_width,
        "num_attention_heads": recipe.heads,
        "joint_attention_dim": recipe.word_width,
        "caption_projection_dim": width,
        "pooled_projection_dim": recipe.word_width,
        "pos_embed_max_size": SIDE // PATCH,
    }


def begin(recipe: Recipe, seed: int) -> tuple[nn.Module, WordTable]:
    """Returns a pre-trained network and the words that it knows."""
    network = make_network(TRANSFORMER, network_settings(recipe), seed)
    words = make_words(WORDS, recipe.word_width, longest=2, seed=0)
    pretrain(
        network,
        recipe.process,
        words,
        draw=partial(drawn_captions, recipe.wrong),
        draw_times=logit_normal_times,
        settings=PretrainingSettings(recipe.pretraining),
        generator=torch.Generator().manual_seed(stable_seed("pretraining", seed)),
    )
    return network, words


def drawn_captions(wrong: float, size: int, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
    """Draws images and captions, of which a share is wrong."""
    return drawn_batch(size, wrong, generator)


def drawn_trajectories(
    predict: Predictor, process: FlowProcess, seeds: list[int], plan: SamplingPlan, rows: int
) -> Trajectory:
    """Samples trajectories in batches of `rows` images."""
    parts = [slice(first, first + rows) for first in range(0, len(seeds), rows)]
    return joined([sample(predict.rows(part), process, seeds[part], plan) for part in parts])


def evaluate(recipe: Recipe, network: nn.Module, words: WordTable) -> ShapeScores:
    """Returns what the rule says of images drawn by the ODE, from noise that is in no training."""
    prompts = [prompt for prompt in PROMPTS for _ in range(recipe.held_out)]
    seeds = [stable_seed("held out", number) for number in range(len(prompts))]
    plan = SamplingPlan(SHAPE, recipe.evaluation_steps, range(0))
    predict = Predictor(network, words.encode(prompts))
    drawn = drawn_trajectories(predict=predict, process=recipe.process, seeds=seeds, plan=plan, rows=recipe.rows)
    return score(drawn.images, prompts)


def image_seeds(recipe: Recipe, seed: int, update: int) -> list[int]:
    """Returns the seeds of an update's images."""
    return [stable_seed("images", seed, update, number) for number in range(len(recipe.prompts))]


def advantages_of(recipe: Recipe, trajectory: Trajectory) -> torch.Tensor:
    """Returns the advantages of an update's images, [B]."""
    rewards = score(trajectory.images, recipe.prompts).rewards
    return group_advantages(rewards, [recipe.group] * len(PROMPTS))


class Policy:
    """A network with its optimizer."""

    def __init__(self, recipe: Recipe, network: nn.Module, words: WordTable) -> None:
        self._recipe = recipe
        self.network = network
        self.words = words
        self._predict = Predictor(network, words.encode(recipe.prompts))
        self._optimizer = torch.optim.AdamW(network.parameters(), recipe.rate, weight_decay=0.0)

    def draw(self, seeds: list[int]) -> Trajectory:
        """Samples the trajectories of an update."""
        recipe = self._recipe
        return drawn_trajectories(
            predict=self._predict, process=recipe.process, seeds=seeds, plan=recipe.plan, rows=recipe.rows
        )

    def learn(self, trajectory: Trajectory, advantages: torch.Tensor) -> UpdateFigures:
        """Takes one optimizer step."""
        figures = accumulate_gradients(
            self._predict,
            self._recipe.process,
            trajectory,
            advantages,
            settings=GrpoSettings(self._recipe.clip, rows=self._recipe.rows),
        )
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return figures


def shuffled(advantages: torch.Tensor, seed: int, update: int) -> torch.Tensor:
    """Returns advantages in a random order over the whole batch: the control, which learns from the same numbers."""
    generator = torch.Generator().manual_seed(stable_seed("shuffled", seed, update))
    return advantages[torch.randperm(len(advantages), generator=generator)]
