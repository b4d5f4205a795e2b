"""How responses are generated: the engine, and the sampling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.tools import ToolsSpec


class TorchRollout(SpecModel):
    """Plain torch over a transformers model, with a decoding loop of our own."""

    kind: Literal["torch"] = "torch"
    instances: PositiveInt = 2
    """Engines in the pool, one device each."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and arithmetic; exact runs need float32."""
    kernels: Literal["auto", "general"] = "auto"
    """`auto`: arithmetic of our own where the model is a dense Llama or Qwen; `general`: transformers' module."""
    max_num_seqs: PositiveInt | None = None
    """Most responses under way at once, and no fewer than a prompt's; the others of a decode batch wait until some have ended.
    `null`: all of a decode batch."""

    @property
    def continuous(self) -> bool:
        """It works on one batch at a time."""
        return False

    @property
    def sequence_limit(self) -> None:
        """A batch may have any number of sequences."""
        return None


class VirtualRollout(SpecModel):
    """Seeded synthetic tokens that take given durations on a scaled clock; for planning and tests."""

    kind: Literal["virtual"] = "virtual"
    instances: PositiveInt = 2
    """Engines in the pool, one device each."""
    base_seconds: NonNegativeFloat = 0.006
    """Seconds of a decode step, however few its sequences."""
    seconds_per_sequence: NonNegativeFloat = 1.5e-5
    """Seconds that each sequence adds to a decode step."""
    seconds_per_context_token: NonNegativeFloat = 0.0
    """Seconds that each token attended to adds to a decode step; of continuous batching alone."""
    seconds_per_prompt_token: NonNegativeFloat = 0.0
    """Seconds for each token that is read; of continuous batching alone."""
    max_num_seqs: PositiveInt | None = None
    """Sequences that an engine batches continuously, by the placement's cost model; `null`: one decode batch at a time."""
    speeds: tuple[PositiveFloat, ...] = ()
    """Of each instance, which its seconds are divided by; none: all of them 1."""
    switch_seconds: NonNegativeFloat = 0.0
    """Out of service for another role within an iteration."""
    repartition_seconds: NonNegativeFloat = 0.0
    """Out of service where an iteration starts with another role than the one before."""
    clock_factor: PositiveFloat = 1.0
    """Real seconds are these divided by the factor."""
    vocabulary: PositiveInt = 1000
    """Token ids are below this."""
    median_tokens: PositiveFloat = Field(default=16.0, le=1e9)
    """Median length of a response; lengths are log-normal."""
    sigma: NonNegativeFloat = Field(default=0.5, le=5.0)
    """Spread of the lengths' logarithm."""
    tool_call_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the turns that call one of `rollout.tools`."""

    @property
    def continuous(self) -> bool:
        """Whether it takes sequences in and lets them go while it works on others."""
        return self.max_num_seqs is not None

    @property
    def sequence_limit(self) -> int | None:
        """Maximum number of sequences that the dispatcher gives it at once; None without continuous batching."""
        return self.max_num_seqs

    @model_validator(mode="after")
    def _a_speed_each(self) -> Self:
        if self.speeds and len(self.speeds) != self.instances:
            raise ValueError(
                f"speeds: {len(self.speeds)} of them for {self.instances} instances; write one each, or none"
            )
        return self


RolloutEngineSpec = Annotated[TorchRollout | VirtualRollout | VllmRollout, Field(discriminator="kind")]


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
    """Of the policy, over all its turns; a response that has not ended by then is flagged as truncated."""
    batch_samples: PositiveInt = 256
    """Most responses in one decode batch; a shard is generated, and after a crash kept, batch by batch."""
    stop: tuple[str, ...] = ()
    """Strings that are single tokens of the model and end a response, besides its end-of-sequence token."""
    tools: ToolsSpec | None = None
    """`null`: a response is one turn."""

    @property
    def max_turns(self) -> int:
        """Most turns of a response."""
        return 1 if self.tools is None else self.tools.max_turns

    @property
    def max_response_tokens(self) -> int:
        """Most tokens of a response: the policy's, and those of tools' results between its turns."""
        return self.max_new_tokens + (0 if self.tools is None else (self.max_turns - 1) * self.tools.max_result_tokens)

    @model_validator(mode="after")
    def _group_in_a_batch(self) -> Self:
        if self.batch_samples < self.samples_per_prompt:
            raise ValueError(
                f"batch_samples {self.batch_samples} is less than samples_per_prompt {self.samples_per_prompt}: "
                "the answers to a prompt are decoded together"
            )
        return self
