"""How the weights are updated: engine, optimizer, schedule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_core import PydanticCustomError

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer


class TorchTrainer(SpecModel):
    """Plain torch, data parallel over a fixed number of ranks."""

    kind: Literal["torch"] = "torch"
    ranks: PositiveInt = 2
    """Logical ranks, one per device. They affect the result, because sums are taken in rank order."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the forward and backward passes; parameters and optimizer state stay in float32."""
    kernels: Literal["auto", "general"] = "auto"
    """`auto`: custom kernels if the model is a dense Llama or Qwen model; `general`: the transformers module."""
    micro_batch_tokens: PositiveInt = 16_384
    """Maximum number of tokens, including padding, in a forward pass."""
    packed: bool = False
    """Whether samples are concatenated into one row without padding, each attending only to itself. Changes the
    last bits of the result."""


class VirtualTrainer(SpecModel):
    """Simulates updates at configured speeds on a scaled clock; its weights are a hash chain over the experience."""

    kind: Literal["virtual"] = "virtual"
    ranks: PositiveInt = 2
    """Logical ranks, one per device."""
    fixed_seconds: NonNegativeFloat = 0.05
    """Fixed time of an update, independent of its size."""
    seconds_per_token: NonNegativeFloat = 1e-6
    """Time that each response token of the experience adds to an update."""
    clock_factor: PositiveFloat = 1.0
    """Virtual seconds per real second."""


TrainerEngineSpec = Annotated[
    TorchTrainer | VirtualTrainer | MegatronTrainer | Fsdp2Trainer, Field(discriminator="kind")
]


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class AdamWSpec(SpecModel):
    """AdamW with gradient clipping by global norm."""

    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of the schedule."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay rates of the running means of the gradient and the squared gradient."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean squared gradient, by which a step is divided."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay: the fraction of a weight that a step subtracts, multiplied by the learning rate."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients with a larger global norm are scaled down to this norm."""


class LoraSpec(SpecModel):
    """Low-rank adapters (arXiv 2106.09685): the model stays frozen, and the updates of selected matrices are learned."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """The adapters are scaled by `alpha / rank`."""
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """Last name components of the linear layers that get adapters."""
    sync: Literal["merged", "adapter"] = "merged"
    """What is sent to the rollout engines: `merged`, all weights with the adapters merged in, or `adapter`, only
    the adapters, which the engines merge on arrival; a model that sees images needs `merged`."""


class ScheduleSpec(SpecModel):
    """Learning rate over the iterations of the run."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the decay from the peak to the end."""
    lr_warmup_iterations: NonNegativeInt = 0
    """Iterations over which the learning rate rises from zero."""
    min_lr_ratio: NonNegativeFloat = Field(default=0.0, le=1.0)
    """Fraction of the peak learning rate that is left at the end."""


class TrainerSpec(SpecModel):
    """Engine, optimizer and schedule."""

    engine: TrainerEngineSpec = TorchTrainer()
    optimizer: AdamWSpec = AdamWSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    lora: LoraSpec | None = None
    """`null`: all weights are trained."""
    sync_bucket_bytes: int = Field(default=256 << 20, ge=8)
    """Maximum bytes of weights sent to the rollout engines at a time. A process that sends or receives weights holds two
    such buckets at once."""
    sync: Literal["full", "delta"] = "full"
    """What is sent to the rollout engines after an update: `full`, all weights, or `delta`, only the numbers that have
    changed in the engines' type, for which each rank keeps a copy of what it sent last, and each vLLM engine one of its
    weights, in host memory. An engine that does not hold what was sent last gets all weights. `delta` saves most with
    engines in bfloat16 and small learning rates; it does not change a result."""
    sync_transport: Literal["direct", "store"] = "direct"
    """How weights reach the rollout engines: `direct`, from each rank over torch.distributed, for which the nodes must reach
    each other; `yatt check` says on which ports. Only runs of earlier versions have `store` (through Ray's object store): they
    go on directly, and a new run is refused. Does not change a result."""

    @field_validator("sync_transport", mode="before")
    @classmethod
    def _known_transport(cls, value: Any) -> Any:
        """Offers, in place of a wrong value, only what a new run may have."""
        if value in ("direct", "store"):
            return value
        raise PydanticCustomError("literal_error", "Input should be 'direct'")
