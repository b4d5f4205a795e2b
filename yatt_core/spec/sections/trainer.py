"""How the weights are updated: the engine, the optimizer, the schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer


class TorchTrainer(SpecModel):
    """Plain torch, data parallel over a fixed number of ranks."""

    kind: Literal["torch"] = "torch"
    ranks: PositiveInt = 2
    """Logical ranks, one device each; part of the result, since sums are taken in their order."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward and backward passes; parameters and optimizer stay in float32."""
    kernels: Literal["auto", "general"] = "auto"
    """`auto`: arithmetic of our own where the model is a dense Llama or Qwen; `general`: transformers' module."""
    micro_batch_tokens: PositiveInt = 16_384
    """Most tokens, padding included, that one forward pass holds."""
    packed: bool = False
    """Samples behind one another in one row, each attending to itself alone: nothing is padded. Changes the last bits."""


class VirtualTrainer(SpecModel):
    """Takes given durations on a scaled clock; its weights are a hash chain over the experience it learnt from."""

    kind: Literal["virtual"] = "virtual"
    ranks: PositiveInt = 2
    """Logical ranks, one device each."""
    fixed_seconds: NonNegativeFloat = 0.05
    """Seconds of an update, however small."""
    seconds_per_token: NonNegativeFloat = 1e-6
    """Seconds that each response token of the experience adds to an update."""
    clock_factor: PositiveFloat = 1.0
    """Real seconds are these divided by the factor."""


TrainerEngineSpec = Annotated[
    TorchTrainer | VirtualTrainer | MegatronTrainer | Fsdp2Trainer, Field(discriminator="kind")
]


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamWSpec(SpecModel):
    """AdamW with gradient clipping by global norm."""

    learning_rate: PositiveFloat = 1e-6
    """Peak of the schedule."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the running means of gradient and squared gradient."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the squared gradient's mean."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled: share of a weight that a step takes off, times the learning rate."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger global norm are scaled down to it."""


class LoraSpec(SpecModel):
    """Low-rank adapters (arXiv 2106.09685): the model stays as it is, what is learnt is added to chosen matrices."""

    rank: PositiveInt = 16
    """Rank of what is added to a matrix."""
    alpha: PositiveFloat = 32.0
    """What is learnt counts `alpha / rank` times."""
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """Last names of the linear layers that get adapters."""
    sync: Literal["merged", "adapter"] = "merged"
    """What goes to the rollout engines: all weights with the adapters in them, or the adapters, to be added on arrival."""


class ScheduleSpec(SpecModel):
    """Learning rate over the iterations of the run."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Its course from the peak to the end."""
    lr_warmup_iterations: NonNegativeInt = 0
    """Iterations over which it rises from zero."""
    min_lr_ratio: NonNegativeFloat = Field(default=0.0, le=1.0)
    """Share of the learning rate that is left at the end."""


class TrainerSpec(SpecModel):
    """Engine, optimizer and schedule."""

    engine: TrainerEngineSpec = TorchTrainer()
    optimizer: AdamWSpec = AdamWSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    lora: LoraSpec | None = None
    """`null`: all weights are trained."""
    sync_bucket_bytes: int = Field(default=256 << 20, ge=8)
    """Most bytes of weights that go to the rollout engines at a time. Ray's object store keeps two at once."""
