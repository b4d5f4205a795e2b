"""What a workload that draws needs, from its settings alone: sizes of its network, and the most that its passes hold at once.

Consumes a network's settings and what a run draws. Produces the contract's `Needs`. Nothing is computed: the code of the passes
runs on tensors without numbers, and the storages that exist at once are added up (`peak_bytes.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from yatt_core.workloads.contract import Needs, RankNeeds, SamplerNeeds
from yatt_core.workloads.diffusion.adapters import ReferencePredictor
from yatt_core.workloads.diffusion.conditions import Conditions
from yatt_core.workloads.diffusion.objectives import LearntBatch, Objective, best_and_worst
from yatt_core.workloads.diffusion.peak_bytes import PeakBytes
from yatt_core.workloads.diffusion.predictors import Predictor
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.sharding import blocks_of
from yatt_core.workloads.diffusion.trajectories import Trajectory

FLOAT = torch.float32.itemsize
MOMENTS = 2
GATHERED = 3
"""Blocks whose weights FSDP2 has gathered at once: the one that computes, the next, and what that is copied from."""


@dataclass(frozen=True, slots=True)
class DrawingWork:
    """What a run draws and learns from.

    outline: makes the network with its adapters, in a type and without numbers; called in FakeTensorMode.
    conditions: of a number of images.
    shape: of an image's latents.
    images: of an iteration.
    batch: images of which one rank computes the gradient at a time.
    steps, window: of a trajectory, and those that are stochastic.
    learnt: passes with gradients of an iteration, each through one image.
    group: images of a prompt.
    objective: with the images of a pass.
    compares, keeps_old: whether there is a reference, and whether images are sampled from weights of their own.
    pairs: whether the best and the worst image of each group are learnt from.
    adapters: whether they are trained in place of the network.
    keeps_latents: whether trajectories are sealed whole.
    held_out, evaluation_steps: images of an evaluation, and the steps of each.
    divided: whether networks are divided over the ranks.
    scorer: bytes of a model that rewards.
    """

    outline: Callable[[torch.dtype], nn.Module]
    conditions: Callable[[int], Conditions]
    process: SamplingProcess
    shape: tuple[int, ...]
    images: int
    batch: int
    steps: int
    window: int
    learnt: int
    group: int
    objective: Objective
    compares: bool
    keeps_old: bool
    pairs: bool
    adapters: bool
    keeps_latents: bool
    held_out: int
    evaluation_steps: int
    divided: bool
    scorer: int

    @property
    def batches(self) -> int:
        """Number of batches of an iteration."""
        return -(-self.images // self.batch)

    def trajectories(self, images: int, steps: int, dtype: torch.dtype = torch.float32) -> int:
        """Returns the bytes of all latents of some images."""
        return images * (steps + 1) * math.prod(self.shape) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes of a network on the rank that holds most of it.

    gathered: what a pass gathers of other ranks; 0 unless the network is divided.
    unreduced: gradients that are whole until they are summed over the ranks.
    """

    weights: int
    trained: int
    gathered: int = 0
    unreduced: int = 0


def needs_of(work: DrawingWork, ranks: int, sampler_dtype: str | None) -> Needs:
    """Returns the needs of a run.

    ranks, sampler_dtype: as for `StatesNeeds.needs`.
    """
    with FakeTensorMode():
        network = work.outline(torch.float32)
        trained = _trained(network)
        # AdamW counts its steps in a number of its own for each weight.
        counters = len(trained) * FLOAT
        held = _divided(network, ranks) if work.divided else _Held(_bytes(_tensors(network)), _bytes(trained))
        forward = _forward_peak(work, network, torch.float32) + held.gathered
        sampler = None if sampler_dtype is None else _sampler_needs(work, getattr(torch, sampler_dtype))
        own_batches = -(-work.batches // ranks)
        own_latents = work.trajectories(min(work.images, own_batches * work.batch), work.steps)
        resampling = 0 if work.keeps_latents else _sampling(own_latents, forward)
        # Sealed latents are there as they were read, and as tensors.
        kept = own_latents * (2 if work.keeps_latents else 1)
        updating = _updating(work=work, network=network, held=held, own_batches=own_batches, ranks=ranks)
        others = (work.compares and not work.adapters) + work.keeps_old
        kept_old = _bytes(trained) if work.keeps_old else 0
        rank = RankNeeds(
            weights=held.weights,
            optimizer=MOMENTS * held.trained + counters,
            gradients=held.trained,
            frozen=others * held.weights + work.scorer,
            # What samplers have drawn, a rank only seals.
            prepare=_sampling(own_latents, forward) if sampler is None else 0,
            learn=max(resampling, kept + updating),
            evaluate=_sampling(work.trajectories(work.held_out, work.evaluation_steps), forward),
        )
        return Needs(
            parameters=sum(weight.numel() for weight in network.parameters()),
            trained=sum(weight.numel() for weight in trained),
            state=_bytes(network.state_dict().values()) + MOMENTS * _bytes(trained) + counters + kept_old,
            rank=rank,
            sampler=sampler,
            work={
                "images": work.images,
                "image_steps": work.images * work.steps,
                "image_steps_learnt": work.learnt,
                "batches": work.batches,
                "evaluation_image_steps": work.held_out * work.evaluation_steps,
            },
            on_device=False,
            assumed=tuple(_assumed(work)),
        )


def _sampler_needs(work: DrawingWork, dtype: torch.dtype) -> SamplerNeeds:
    network = work.outline(dtype)
    # Without adapters, all that a checkpoint would have of the network.
    sent = _trained(network) if work.adapters else network.state_dict().values()
    latents = work.trajectories(min(work.batch, work.images), work.steps, dtype)
    return SamplerNeeds(
        weights=_bytes(_tensors(network)),
        sent=_bytes(sent),
        frozen=work.scorer,
        collect=_sampling(latents, _forward_peak(work, network, dtype)),
    )


def _updating(work: DrawingWork, network: nn.Module, held: _Held, own_batches: int, ranks: int) -> int:
    """Returns what an update holds at most beside its trajectories and gradients: in its passes, or while it exchanges.

    own_batches: of the rank that has most.
    """
    gradient = _bytes(_trained(network))
    computing = max(0, _update_peak(work, network) - gradient)
    if work.divided:
        return computing + held.gathered + held.unreduced
    # A batch's gradient is kept as a row. All ranks get all rows, which are encoded and decoded on the way.
    rows = 4 * own_batches if ranks == 1 else 3 * own_batches + 2 * work.batches
    return max((own_batches - 1) * gradient + computing, rows * gradient)


def _sampling(latents: int, forward: int) -> int:
    """Returns what sampling takes: all latents and a pass, or all latents twice when those of several passes are joined.

    latents: bytes of all latents.
    forward: bytes that a pass holds at most.
    """
    return latents + max(forward, latents)


def _forward_peak(work: DrawingWork, network: nn.Module, dtype: torch.dtype) -> int:
    """Returns what a step of sampling holds at most beside its latents."""
    images = min(work.objective.rows, work.batch, work.images)
    latents = torch.zeros(images, *work.shape, dtype=dtype)
    grid = work.process.grid(work.steps)
    predict = Predictor(network, work.conditions(images))
    counted = PeakBytes()
    with torch.no_grad(), counted:
        times = grid[0].expand(images)
        prediction = predict(latents, work.process.model_times(times))
        afters = grid[1].expand(images)
        if work.window:
            step = work.process.gaussian(prediction, latents, times, afters)
            step.drawn(torch.zeros(images, *work.shape), dtype)
        else:
            work.process.straight(prediction, latents, times, afters)
    return counted.peak


def _update_peak(work: DrawingWork, network: nn.Module) -> int:
    """Returns what the passes of a micro-batch hold at most, with the gradients that they leave."""
    # Pairs come from whole groups, so that a batch has fewer of them than images.
    images = min(work.batch, work.images) if work.pairs else min(work.objective.rows, work.batch, work.images)
    with unset_fake_temporarily():
        pairs = best_and_worst(torch.zeros(images), work.group) if work.pairs else None
    trajectory = Trajectory(
        latents=tuple(torch.zeros(images, *work.shape) for _ in range(work.steps + 1)),
        log_probabilities=torch.zeros(images, work.window),
        window=range(work.window),
    )
    conditions = work.conditions(images)
    other = Predictor(network, conditions)
    if work.compares and work.adapters:
        other = ReferencePredictor(network, conditions)
    batch = LearntBatch(
        prompts=[""] * images,
        trajectory=trajectory,
        advantages=torch.zeros(images),
        seeds=tuple(range(images)),
        share=1.0,
        pairs=pairs,
    )
    counted = PeakBytes()
    with counted:
        passes = work.objective.losses(
            Predictor(network, conditions),
            work.process,
            batch,
            other if work.compares or work.keeps_old else None,
        )
        next(passes).sum().backward()  # type: ignore[no-untyped-call]
    return counted.peak


def _divided(network: nn.Module, ranks: int) -> _Held:
    """Returns what rank 0 holds of a network that FSDP2 divides by rows, of which it has the most."""
    blocks = [_bytes(block.parameters()) for block in blocks_of(network)]
    learnt = [_bytes(_trained(block)) for block in blocks_of(network)]
    # What is outside of the blocks stays gathered during the whole pass.
    outside = _bytes(network.parameters()) - sum(blocks)
    outside_learnt = _bytes(_trained(network)) - sum(learnt)
    return _Held(
        weights=sum(_rows_of(weight, ranks) for weight in network.parameters()) + _bytes(network.buffers()),
        trained=sum(_rows_of(weight, ranks) for weight in _trained(network)),
        gathered=outside + GATHERED * max(blocks),
        unreduced=outside_learnt + max(learnt),
    )


def _rows_of(weight: torch.Tensor, ranks: int) -> int:
    """Returns the bytes of the rows of a tensor that rank 0 has."""
    return weight.nbytes // weight.shape[0] * -(-weight.shape[0] // ranks)


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in network.parameters() if weight.requires_grad]


def _tensors(network: nn.Module) -> Iterable[torch.Tensor]:
    yield from network.parameters()
    yield from network.buffers()


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _assumed(work: DrawingWork) -> Iterable[str]:
    yield "its networks compute on processors, also on nodes with GPUs"
    yield "what a processor's libraries take within an operation is not counted, nor is building the inputs, which pre-trains"
    if work.scorer:
        yield "of a model that rewards, the weights are counted, not its passes"
