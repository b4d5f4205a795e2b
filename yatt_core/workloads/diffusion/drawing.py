"""A workload that learns to draw shapes by Flow-GRPO, DDPO, DiffusionNFT or Diffusion-DPO: the contract of `workloads.contract`.

Consumes settings. Produces, as inputs, a pre-trained network and its words; per iteration, the prompts and seeds of images, the
trajectories that were sampled, and one update. What is sealed of a trajectory is its seeds, rewards and log-probabilities, or of
one without stochastic steps the digest of its image: an update samples it again from the same weights and compares every bit of
these. With `keep: latents` its latents are sealed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import stable_seed
from yatt_core.workloads.contract import Columns, Draw, Images, Metrics, Needs, Ranks, RunFacts, SavedState, State
from yatt_core.workloads.diffusion.adapters import (
    ReferencePredictor,
    add_adapters,
    has_adapters,
    is_adapter,
    name_without,
)
from yatt_core.workloads.diffusion.conditions import Conditions, load_words, make_words, save_words
from yatt_core.workloads.diffusion.drawing_settings import (
    FORM,
    INPUTS,
    NETWORKS,
    STATE,
    DrawingSettings,
    network_settings,
    objective_of,
)
from yatt_core.workloads.diffusion.gradients import added, flat_gradient, set_gradient
from yatt_core.workloads.diffusion.held_tensors import divided_like, held, local, read
from yatt_core.workloads.diffusion.needs import DrawingWork, needs_of
from yatt_core.workloads.diffusion.networks import (
    load_network,
    make_network,
    outline_network,
    retype,
    save_network,
)
from yatt_core.workloads.diffusion.objectives import LearntBatch, best_and_worst
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.pretraining import PretrainingSettings, logit_normal_times, pretrain, uniform_times
from yatt_core.workloads.diffusion.scorers import (
    SCORER,
    check_scorer,
    keep_scorer,
    kept_scorer,
    scorer_bytes,
)
from yatt_core.workloads.diffusion.shapes import PROMPTS, SHAPE, WORDS, drawn_batch, score
from yatt_core.workloads.diffusion.trajectories import SamplingPlan, Trajectory, image_digests, joined, sample
from yatt_core.workloads.diffusion.updates import UpdateFigures, group_advantages
from yatt_core.workloads.settings import SETTINGS, read_settings

LONGEST_PROMPT = 2
"""Words of a prompt."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps for each weight."""
OLD = "old"
"""What the weights that images are sampled from are called in a state, before their own names."""
SUMMED = ("loss", "divergence", "reward")
"""Metrics of an update that are sums over the batches."""


class ShapeDrawing:
    """Implements `Workload`, `StatesNeeds`, `SamplesApart`, `ShowsImages` and `Continues`.

    Each rank samples and learns from its share of the batches; samplers draw one batch at a time. Batches are the same on any
    number of ranks, and their gradients are added in their order, so that the bits of a run do not depend on the number.
    """

    ranks: ClassVar[Literal["one", "any"]] = "any"
    divided: ClassVar[bool] = False
    """Whether the networks are divided over the ranks."""

    def __init__(self, facts: RunFacts) -> None:
        for fixed, what in ((INPUTS, "inputs depend"), (STATE, "form of the state depends")):
            if named := sorted(fixed & facts.tunable):
                raise ConfigurationError(
                    f"workload.tunable.{named[0]}: the {what} on it, which cannot change; expected it in workload.settings"
                )
        self._seed = facts.seed
        self._continues = facts.continues
        self._models = facts.models
        self._sampler_dtype = facts.sampler_dtype
        self._settings = read_settings(DrawingSettings, facts)
        self._process = self._settings.process
        self._objective = objective_of(self._settings)

    def needs(self, ranks: int, sampler_dtype: str | None) -> Needs:
        """Makes the network without numbers, and adds up what its passes would hold at once."""
        settings = self._settings
        work = DrawingWork(
            outline=self._outlined,
            conditions=self._blank_conditions,
            process=self._process,
            shape=SHAPE,
            images=len(PROMPTS) * settings.group,
            batch=settings.batch,
            steps=settings.steps,
            window=settings.stochastic,
            learnt=settings.learnt(len(PROMPTS)),
            group=settings.group,
            objective=self._objective,
            compares=settings.compares,
            keeps_old=settings.keeps_old,
            pairs=settings.method == "dpo",
            adapters=settings.adapters is not None,
            keeps_latents=settings.keep == "latents",
            held_out=len(PROMPTS) * settings.held_out,
            evaluation_steps=settings.evaluation_steps,
            divided=self.divided,
            scorer=scorer_bytes(settings.reward, self._models),
        )
        return needs_of(work, ranks, sampler_dtype)

    def check_inputs(self) -> None:
        """Outlines the network; makes the scorer of the reward, if it is a model, and has it score an image for each prompt."""
        if self._sampler_dtype not in (None, "float32") and self._settings.keep == "seeds":
            raise ConfigurationError(f"workload.settings.keep: {_narrow(self._sampler_dtype)}")
        with FakeTensorMode():
            self._outlined(torch.float32)
        check_scorer(self._settings.reward, self._models, PROMPTS)

    def build_inputs(self, folder: Path) -> None:
        """Writes a network, pre-trained from the run's seed unless its weights come from another run, its words, and a scorer."""
        settings = self._settings
        network = make_network(NETWORKS[settings.network], network_settings(settings), self._seed, SETTINGS)
        words = make_words(WORDS, settings.word_width, longest=LONGEST_PROMPT, seed=0)
        if not self._continues:
            pretrain(
                network,
                self._process,
                words,
                draw=lambda size, generator: drawn_batch(size, settings.wrong, generator),
                draw_times=uniform_times(self._process) if settings.network == "unet" else logit_normal_times,
                settings=PretrainingSettings(settings.pretraining),
                guidance=settings.guidance,
                generator=torch.Generator().manual_seed(stable_seed("pretraining", self._seed)),
            )
        save_network(network, folder)
        save_words(words, folder)
        keep_scorer(settings.reward, self._models, PROMPTS, folder)

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins with the pre-trained network and an AdamW without steps."""
        self._ranks = ranks
        self._read_inputs(inputs, torch.float32)
        self._build_networks()
        self._moments = {
            f"{moment}.{name}": torch.zeros(() if moment == "step" else weight.shape)
            for name, weight in self._own_parameters().items()
            for moment in MOMENTS
        }

    def begin_sampling(self, inputs: Path, dtype: str) -> None:
        """Loads the network in a type.

        Raises `ConfigurationError` if updates, in float32, could not sample again what it samples.
        """
        if dtype != "float32" and self._settings.keep == "seeds":
            raise ConfigurationError(f"workload.settings.keep: {_narrow(dtype)}")
        self._read_inputs(inputs, getattr(torch, dtype))
        self._network = self._pretrained()
        self._reference: nn.Module | None = None
        self._old: nn.Module | None = None

    def continue_from(self, saved: SavedState) -> None:
        """Begins with the network of another run, with which a KL term or pairs then compare.

        Adapters of its own are new. Raises `DataError` for a network with adapters, whose weights would be taken without them,
        and for one that was made with other settings.
        """
        if has_adapters(saved.weights.shapes):
            raise DataError("the network to begin with has adapters; expected one whose own weights were trained")
        for network in self._networks():
            for name, tensor in network.state_dict().items():
                if not is_adapter(name):
                    _read_start(tensor, saved, name_without(name))

    def draw(self, draw: Draw) -> Columns:
        """Draws the seeds of a group of images for each prompt."""
        prompts = np.repeat(np.arange(len(PROMPTS)), self._settings.group)
        seeds = np.array([draw.seed_of("image", number) for number in range(len(prompts))], dtype=np.uint64)
        return {"prompt": prompts, "seed": seeds.view(np.int64)}

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        """Samples this rank's images, whole batches of them, and rewards them."""
        batch = self._settings.batch
        share = self._ranks.share(-(-len(columns["prompt"]) // batch))
        rows = slice(share.start * batch, share.stop * batch)
        return self.sample_shard({name: values[rows] for name, values in columns.items()}, draw)

    def sampling_weights(self) -> Mapping[str, torch.Tensor]:
        """Returns the weights that images are sampled from; if there are adapters, theirs alone: the others stay as they are."""
        weights = self._sampling.state_dict()
        return {name: weight for name, weight in weights.items() if not self._settings.adapters or is_adapter(name)}

    def shards(self, columns: Columns) -> Sequence[slice]:
        """Cuts images into batches of which one rank would compute the gradient."""
        batch = self._settings.batch
        return [slice(first, first + batch) for first in range(0, len(columns["prompt"]), batch)]

    def sample_shard(self, columns: Columns, draw: Draw) -> Columns:
        """Samples whole batches of images, and rewards them."""
        drawn = self._sampled(columns, draw)
        self._latest = drawn.images
        found = {
            **columns,
            "reward": self._rewarded(drawn.images, _prompts(columns)).numpy(),
        }
        if self._settings.stochastic:
            found["log_probability"] = drawn.log_probabilities.float().numpy()
        if self._settings.keep == "latents":
            found["latents"] = torch.stack(drawn.latents, 1).float().numpy()
        elif not self._settings.stochastic:
            found["image"] = image_digests(drawn)
        return found

    def images(self, columns: Columns, draw: Draw) -> Images:
        """Returns the images that `sample` or `sample_shard` has just drawn; those of sealed latents, if there are any."""
        latents = columns.get("latents")
        latest = self._latest if latents is None else torch.from_numpy(np.array(latents[:, -1]))
        return Images(
            pixels=pixels_of(latest).numpy(),
            captions=_prompts(columns),
            rewards=columns["reward"],
            seeds=columns["seed"].view(np.uint64),
        )

    def rewards(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """Returns the rewards of at least one image, [B], float32: those of the settings. A subclass may have others.

        images: [B, 3, 16, 16], from about -1 to 1.
        """
        if self._scorer is None:
            return score(images, prompts).rewards
        return self._scorer.score(pixels_of(images), prompts)

    def _rewarded(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """Returns the rewards of images, of which a rank without batches has none."""
        return self.rewards(images, prompts) if prompts else torch.zeros(0)

    def advantages(self, rewards: torch.Tensor, draw: Draw) -> torch.Tensor:
        """Returns the advantages of this rank's images, [B], float32: normalised in each group. A subclass may have others.

        rewards: [B], ordered by group.
        """
        group = self._settings.group
        return group_advantages(rewards, [group] * (len(rewards) // group))

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Takes one step of AdamW on the mean loss of all images or, with `dpo`, of all pairs; none if there is no pair.

        Raises `DataError` if trajectories that are sampled again differ from those that were sealed.
        """
        trajectory = self._trajectory(columns, draw)
        rewards = torch.from_numpy(np.array(columns["reward"]))
        advantages = self.advantages(rewards, draw) if len(rewards) else rewards
        total = len(PROMPTS) * self._settings.group
        sums = [torch.zeros(0, len(SUMMED), dtype=torch.float64)]
        batches = []
        for first in range(0, len(rewards), self._settings.batch):
            rows = slice(first, first + self._settings.batch)
            seeds = tuple(_seeds(columns)[rows])
            share = len(rewards[rows]) / total
            batches.append(
                self._learnt(
                    prompts=_prompts(columns)[rows],
                    trajectory=trajectory.rows(rows),
                    advantages=advantages[rows],
                    seeds=seeds,
                    share=share,
                )
            )
        counted = self._pairs_of_all(batches)
        if counted is not None:
            batches = [replace(batch, share=_pairs(batch) / max(1, counted)) for batch in batches]
        figures = self._sum_gradients(batches, trajectory.window)
        for number, (batch, found) in enumerate(zip(batches, figures, strict=True)):
            first = number * self._settings.batch
            reward = rewards[first : first + self._settings.batch].sum().item() / total
            own = (batch.share * found.loss, batch.share * found.divergence, reward)
            sums.append(torch.tensor([own], dtype=torch.float64))
        gap = max((found.gap for found in figures), default=0.0)
        everyone = self._ranks.gathered({"sums": torch.cat(sums).numpy(), "gap": np.array([gap])})
        means = dict(zip(SUMMED, added([each["sums"] for each in everyone]).tolist(), strict=True))
        pairs = {} if counted is None else {"pairs": float(counted)}
        if counted == 0:
            # Nothing was learnt: a step of AdamW would still follow its moments.
            self._network.zero_grad()
            return {"reward": means["reward"], **pairs}
        norm = self._limit_gradient()
        self._step()
        self._follow(draw.iteration)
        if self._settings.method != "grpo":
            del means["divergence"]
        largest = float(max(each["gap"].max() for each in everyone))
        gaps = {"log_probability_gap": largest} if self._settings.stochastic else {}
        return {"grad_norm": norm, **gaps, **means, **pairs}

    def held_out(self) -> tuple[list[str], torch.Tensor]:
        """Returns the prompts of an evaluation and their images, [B, 3, 16, 16], from noise that is in no training."""
        settings = self._settings
        prompts = [prompt for prompt in PROMPTS for _ in range(settings.held_out)]
        seeds = [stable_seed("held out", number) for number in range(len(prompts))]
        plan = SamplingPlan(SHAPE, settings.evaluation_steps, range(0))
        return prompts, self._in_batches(prompts, seeds, plan, self._network).images

    def evaluate(self) -> Metrics:
        """Returns the share of held-out images that show what was asked, and that show anything; a model's mean score."""
        prompts, images = self.held_out()
        scores = score(images, prompts)
        found = {"accuracy": scores.rewards.mean().item(), "valid": scores.valid.float().mean().item()}
        return found if self._scorer is None else {**found, "reward": self.rewards(images, prompts).mean().item()}

    def state(self) -> State:
        """Returns the network's weights, AdamW's moments, and as a fact the kind and digest of a model that rewards.

        Weights that images are sampled from, if these are others, are beside the moments.
        """
        facts = {} if self._scorer is None else {SCORER: self._scorer.facts}
        moments = {name: divided_like(moment, self._like(name)) for name, moment in self._moments.items()}
        others = moments | held({f"{OLD}.{name}": weight for name, weight in self._old_weights().items()})
        return State(weights=held(self._network.state_dict()), others=others, facts=facts)

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        for name, tensor in self._network.state_dict().items():
            read(tensor, local(tensor), saved.weights, name)
        for name, moment in self._moments.items():
            read(self._like(name), moment, saved.others, name)
        for name, weight in self._old_weights().items():
            read(weight, local(weight), saved.others, f"{OLD}.{name}")

    def _read_inputs(self, inputs: Path, dtype: torch.dtype) -> None:
        """Reads what trainer and samplers need beside the network.

        dtype: of the network.
        """
        self._inputs = inputs
        self._dtype = dtype
        self._words = load_words(inputs)
        self._latest = torch.zeros(0, *SHAPE)
        self._scorer = kept_scorer(self._settings.reward, inputs)

    def _pretrained(self) -> nn.Module:
        """Returns the pre-trained network, with adapters if it gets any."""
        network = load_network(self._inputs, self._dtype)
        if self._settings.adapters is not None:
            add_adapters(network, self._settings.adapters, self._seed)
            nn.Module.to(network, self._dtype)
        return network

    def _outlined(self, dtype: torch.dtype) -> nn.Module:
        """Returns the network without numbers, with adapters if it gets any; called in FakeTensorMode."""
        settings = self._settings
        network = outline_network(NETWORKS[settings.network], network_settings(settings), SETTINGS)
        if settings.adapters is not None:
            with unset_fake_temporarily():  # peft moves what it makes, which only tensors with numbers can be
                add_adapters(network, settings.adapters, self._seed)
        retype(network, dtype)
        return network

    def _blank_conditions(self, images: int) -> Conditions:
        """Returns conditions of the shapes that prompts have."""
        width = self._settings.word_width
        return Conditions(
            words=torch.zeros(images, LONGEST_PROMPT, width),
            pooled=torch.zeros(images, width),
            mask=torch.ones(images, LONGEST_PROMPT, dtype=torch.bool),
        ).guided(self._settings.guidance)

    def _build_networks(self) -> None:
        """Reads the network, the reference if it is another one, and what images are sampled from, if that is another one."""
        network = self._pretrained()
        separate = self._settings.compares and self._settings.adapters is None
        self._reference = self._arranged(load_network(self._inputs, self._dtype)) if separate else None
        self._old = self._arranged(self._pretrained()) if self._settings.keeps_old else None
        self._network = self._arranged(network)
        self._parameters = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}

    def _arranged(self, network: nn.Module) -> nn.Module:
        """Returns a network as this rank holds it: whole."""
        return network

    def _networks(self) -> list[nn.Module]:
        return [network for network in (self._network, self._reference, self._old) if network is not None]

    @property
    def _sampling(self) -> nn.Module:
        """The network that images are sampled from."""
        return self._network if self._old is None else self._old

    def _old_weights(self) -> dict[str, nn.Parameter]:
        """Returns the weights that images are sampled from, as far as they are trained and not the network's own."""
        if self._old is None:
            return {}
        return {name: weight for name, weight in self._old.named_parameters() if name in self._parameters}

    @torch.no_grad()
    def _follow(self, iteration: int) -> None:
        """Moves what images are sampled from towards the network, after an update (arXiv 2509.16117)."""
        share = self._settings.old_share(iteration)
        for name, weight in self._old_weights().items():
            local(weight).mul_(share).add_(local(self._parameters[name]), alpha=1 - share)

    def _own_parameters(self) -> Mapping[str, torch.Tensor]:
        """Returns the trained weights as this rank holds them, with their gradients."""
        return self._parameters

    def _like(self, name: str) -> torch.Tensor:
        """Returns a tensor of the shape, and divided over the ranks in the way, of a moment."""
        moment, _, weight = name.partition(".")
        return self._moments[name] if moment == "step" else self._parameters[weight]

    def _sum_gradients(self, batches: Sequence[LearntBatch], window: range) -> list[UpdateFigures]:
        """Leaves the gradient of all ranks' batches with the weights; returns what is reported of this rank's."""
        gradients = [torch.zeros(0, sum(weight.numel() for weight in self._parameters.values()))]
        figures = []
        for batch in batches:
            self._network.zero_grad()
            figures.append(self._accumulate(batch))
            gradients.append(batch.share * flat_gradient(self._parameters))
        everyone = self._ranks.gathered({"gradient": torch.cat(gradients).numpy()})
        set_gradient(self._parameters, added([each["gradient"] for each in everyone]))
        return figures

    def _limit_gradient(self) -> float:
        """Limits the gradient's norm; returns what it was."""
        return nn.utils.clip_grad_norm_(self._parameters.values(), self._settings.max_grad_norm).item()

    def _accumulate(self, batch: LearntBatch, weight: float = 1.0) -> UpdateFigures:
        """Adds the gradient of a batch's mean loss, times a weight, to that of the network."""
        return self._objective.accumulate(
            self._predictor(self._network, batch.prompts),
            self._process,
            batch,
            other=self._other_predictor(batch.prompts),
            weight=weight,
        )

    def _other_predictor(self, prompts: list[str]) -> Predictor | None:
        """Returns what an update compares with, if anything: what sampled, another network, or this one without its adapters."""
        conditions = self._conditions(prompts)
        if self._old is not None:
            return Predictor(self._old, conditions)
        if not self._settings.compares:
            return None
        if self._reference is None:
            return ReferencePredictor(self._network, conditions)
        return Predictor(self._reference, conditions)

    def _step(self) -> None:
        """Takes one step of AdamW, whose state is in tensors of this object's own: a checkpoint has them from the start."""
        own = self._own_parameters()
        optimizer = torch.optim.AdamW(own.values(), self._settings.rate, weight_decay=0.0)
        for name, weight in own.items():
            optimizer.state[weight] = {moment: self._moments[f"{moment}.{name}"] for moment in MOMENTS}
        optimizer.step()
        self._network.zero_grad()

    def _learnt(
        self,
        *,
        prompts: list[str],
        trajectory: Trajectory,
        advantages: torch.Tensor,
        seeds: tuple[int, ...],
        share: float,
    ) -> LearntBatch:
        """Returns a batch with its pairs, if the method has any."""
        pairs = best_and_worst(advantages, self._settings.group) if self._settings.method == "dpo" else None
        return LearntBatch(prompts, trajectory, advantages, seeds=seeds, share=share, pairs=pairs)

    def _pairs_of_all(self, batches: Sequence[LearntBatch]) -> int | None:
        """Returns the number of pairs of all ranks; None for a method without pairs."""
        if self._settings.method != "dpo":
            return None
        own = sum(_pairs(batch) for batch in batches)
        everyone = self._ranks.gathered({"pairs": np.array([own])})
        return sum(int(each["pairs"][0]) for each in everyone)

    def _trajectory(self, columns: Columns, draw: Draw) -> Trajectory:
        window = self._plan(draw).window
        count = len(columns["reward"])
        sealed = torch.from_numpy(np.array(columns["log_probability"])) if window else torch.zeros(count, 0)
        if "latents" in columns:
            latents = torch.from_numpy(np.array(columns["latents"]))
            return Trajectory(tuple(latents.unbind(1)), sealed, window)
        again = self._sampled(columns, draw)
        if "image" in columns and not np.array_equal(image_digests(again), columns["image"]):
            raise DataError("images that were sampled again from their seeds have other bits")
        # Values that are not finite become metrics that are not, of which the run decides; all ranks then see them alike.
        if not torch.allclose(again.log_probabilities, sealed, rtol=0.0, atol=0.0, equal_nan=True):
            raise DataError("trajectories that were sampled again from their seeds have other log-probabilities")
        return again

    def _sampled(self, columns: Columns, draw: Draw) -> Trajectory:
        return self._in_batches(_prompts(columns), _seeds(columns), self._plan(draw), self._sampling)

    def _in_batches(self, prompts: list[str], seeds: list[int], plan: SamplingPlan, network: nn.Module) -> Trajectory:
        if not seeds:
            nothing = torch.zeros(0, *plan.shape)
            return Trajectory((nothing,) * (plan.steps + 1), torch.zeros(0, len(plan.window)), plan.window)
        predict = self._predictor(network, prompts)
        parts = [slice(first, first + self._settings.rows) for first in range(0, len(seeds), self._settings.rows)]
        return joined([sample(predict.rows(part), self._process, seeds[part], plan) for part in parts])

    def _plan(self, draw: Draw) -> SamplingPlan:
        return SamplingPlan(SHAPE, self._settings.steps, self._settings.window_at(draw.iteration), self._dtype)

    def _predictor(self, network: nn.Module, prompts: list[str]) -> Predictor:
        return Predictor(network, self._conditions(prompts))

    def _conditions(self, prompts: list[str]) -> Conditions:
        return self._words.encode(prompts).guided(self._settings.guidance)


def _read_start(tensor: torch.Tensor, saved: SavedState, name: str) -> None:
    """Reads a tensor of another run. Raises `DataError` for one of another form, with the settings that decide it."""
    try:
        read(tensor, local(tensor), saved.weights, name)
    except DataError as error:
        settings = ", ".join(sorted(FORM))
        raise DataError(f"{error}; expected the workload.settings with which it was trained: {settings}") from error


def pixels_of(images: torch.Tensor) -> torch.Tensor:
    """Returns the pixels of images, [B, height, width, 3], uint8; what is no number becomes grey.

    images: [B, 3, height, width], from -1 to 1; numbers outside count as the nearest within.
    """
    levels = (images.nan_to_num(0.0).clamp(-1, 1) + 1) * 127.5
    return levels.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _narrow(dtype: str | None) -> str:
    """Says why samplers cannot hold the weights in a type."""
    return (
        f"seeds are sampled again in float32, but rollout.engine.dtype is {dtype}; expected latents, or float32 in "
        "rollout.engine.dtype"
    )


def _seeds(columns: Columns) -> list[int]:
    seeds: list[int] = np.array(columns["seed"]).view(np.uint64).tolist()
    return seeds


def _pairs(batch: LearntBatch) -> int:
    return 0 if batch.pairs is None else batch.pairs.count


def _prompts(columns: Columns) -> list[str]:
    return [PROMPTS[place] for place in columns["prompt"].tolist()]
