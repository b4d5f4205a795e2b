"""How responses are generated: the engine, and the sampling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from yatt_core.spec.base import SpecModel


class TorchRollout(SpecModel):
    """Plain torch over a transformers model, with a decoding loop of our own."""

    kind: Literal["torch"] = "torch"
    instances: PositiveInt = 2
    """Engines in the pool, one device each."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and arithmetic; exact runs need float32."""


class VirtualRollout(SpecModel):
    """Seeded synthetic tokens that take given durations on a scaled clock; for planning and tests."""

    kind: Literal["virtual"] = "virtual"
    instances: PositiveInt = 2
    """Engines in the pool, one device each."""
    base_seconds: NonNegativeFloat = 0.006
    """Seconds of a decode step, however few its sequences."""
    seconds_per_sequence: NonNegativeFloat = 1.5e-5
    """Seconds that each sequence adds to a decode step."""
    clock_factor: PositiveFloat = 1.0
    """Real seconds are these divided by the factor."""
    vocabulary: PositiveInt = 1000
    """Token ids are below this."""
    median_tokens: PositiveFloat = 16.0
    """Median length of a response; lengths are log-normal."""
    sigma: NonNegativeFloat = 0.5
    """Spread of the lengths' logarithm."""
    hang_file: str | None = None
    """For tests of recovery: a file that holds a version. The engine that generates with it first removes it and hangs."""


RolloutEngineSpec = Annotated[TorchRollout | VirtualRollout, Field(discriminator="kind")]


class RolloutSpec(SpecModel):
    """Sampling of responses."""

    engine: RolloutEngineSpec = TorchRollout()
    samples_per_prompt: PositiveInt = 8
    """Responses to each prompt: the group of GRPO."""
    temperature: PositiveFloat = 1.0
    """Also applied to the trainer's log-probabilities."""
    top_p: PositiveFloat = Field(default=1.0, le=1.0)
    """Below 1 the engine renormalises, which widens the gap between sampler and trainer."""
    max_new_tokens: PositiveInt = 256
    """A response that has not ended by then is flagged as truncated."""
    batch_samples: PositiveInt = 256
    """Most responses in one decode batch; a shard is generated, and after a crash kept, batch by batch."""
    stop: tuple[str, ...] = ()
    """Strings that are single tokens of the model and end a response, besides its end-of-sequence token."""

    @model_validator(mode="after")
    def _group_in_a_batch(self) -> Self:
        if self.batch_samples < self.samples_per_prompt:
            raise ValueError(
                f"batch_samples {self.batch_samples} is less than samples_per_prompt {self.samples_per_prompt}: "
                "the answers to a prompt are decoded together"
            )
        return self
