"""How responses are generated: engine and sampling."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.tools import ToolsSpec


def is_false(value: bool) -> bool:
    """Returns True for a value that is left out of a spec's JSON, so that older specs keep their digests."""
    return not value


class TorchRollout(SpecModel):
    """Plain torch with a custom decoding loop over a transformers model."""

    kind: Literal["torch"] = "torch"
    instances: PositiveInt = 2
    """Engines in the pool, one per device."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and computation."""
    kernels: Literal["auto", "general"] = "auto"
    """`auto`: custom kernels if the model is a dense Llama or Qwen model; `general`: the transformers module."""
    max_num_seqs: PositiveInt | None = None
    """Maximum number of responses decoded at once, but at least the samples of one prompt; the rest of a decode
    batch waits. `null`: the whole decode batch."""
    continuous: bool = Field(default=False, exclude_if=is_false)
    """Whether an engine takes up responses while it decodes others, at most `max_num_seqs` of them. A placement can then move
    responses in progress to another instance, which goes on from their tokens, and with tools a response's next turn joins what
    is being decoded. Exact in float32 on processors. `false`: one decode batch at a time."""

    @property
    def sequence_limit(self) -> int | None:
        """Maximum number of sequences sent to the engine at once; None if a batch may have any number."""
        return self.max_num_seqs if self.continuous else None

    @model_validator(mode="after")
    def _places(self) -> Self:
        if self.continuous and self.max_num_seqs is None:
            raise ValueError("max_num_seqs: null, but with continuous it says how many responses are decoded at once")
        return self


class VirtualRollout(SpecModel):
    """Seeded synthetic tokens generated at configured speeds on a scaled clock; for planning and tests."""

    kind: Literal["virtual"] = "virtual"
    instances: PositiveInt = 2
    """Engines in the pool, one per device."""
    base_seconds: NonNegativeFloat = 0.006
    """Fixed time of a decode step, independent of its number of sequences."""
    seconds_per_sequence: NonNegativeFloat = 1.5e-5
    """Time that each sequence adds to a decode step."""
    seconds_per_context_token: NonNegativeFloat = 0.0
    """Time that each attended token adds to a decode step; used with continuous batching only."""
    seconds_per_prompt_token: NonNegativeFloat = 0.0
    """Time per token of prefill; used with continuous batching only."""
    max_num_seqs: PositiveInt | None = None
    """Maximum number of sequences that an engine batches continuously, as in the placement's cost model; `null`:
    one decode batch at a time."""
    speeds: tuple[PositiveFloat, ...] = ()
    """Relative speed of each instance, by which its times are divided; empty: all speeds are 1."""
    switch_seconds: NonNegativeFloat = 0.0
    """Downtime of an instance that changes its role within an iteration."""
    repartition_seconds: NonNegativeFloat = 0.0
    """Downtime of an instance that starts an iteration with a different role than in the previous one."""
    clock_factor: PositiveFloat = 1.0
    """Virtual seconds per real second."""
    vocabulary: PositiveInt = 1000
    """Vocabulary size; token ids are smaller than this."""
    median_tokens: PositiveFloat = Field(default=16.0, le=1e9)
    """Median response length in tokens; lengths are log-normal."""
    sigma: NonNegativeFloat = Field(default=0.5, le=5.0)
    """Standard deviation of the logarithm of the length."""
    tool_call_fraction: float = Field(default=0.0, ge=0.0, le=1.0)
    """Fraction of turns that call one of `rollout.tools`."""

    @property
    def continuous(self) -> bool:
        """True if sequences enter and leave while others are being decoded."""
        return self.max_num_seqs is not None

    @property
    def sequence_limit(self) -> int | None:
        """Maximum number of sequences sent to the engine at once; None without continuous batching."""
        return self.max_num_seqs

    @model_validator(mode="after")
    def _a_speed_each(self) -> Self:
        if self.speeds and len(self.speeds) != self.instances:
            raise ValueError(
                f"speeds: {len(self.speeds)} values for {self.instances} instances; expected one per instance, or none"
            )
        return self


RolloutEngineSpec = Annotated[TorchRollout | VirtualRollout | VllmRollout, Field(discriminator="kind")]


class ThoughtMarks(SpecModel):
    """What thoughts begin and end with in a response."""

    begin: str = Field(default="<think>", min_length=1)
    """Before the thoughts."""
    end: str = Field(default="</think>", min_length=1)
    """Behind the thoughts."""


class TailSpec(SpecModel):
    """Ends an iteration at the decode step at which enough groups are complete; longer responses go on in later ones.

    More prompts are in flight than an iteration learns from. Decode steps are counted in the tokens of each response since the
    iteration began: neither the clock nor the number of engines and controllers decides anything. What is not complete is kept
    with the tokens that it has at this step, and goes on from them under newer weights; nothing is dropped for being late.
    """

    factor: float = Field(default=1.25, gt=1.0, le=4.0)
    """Prompts whose responses are begun and not learnt from yet, relative to `data.prompts_per_iteration`; rounded up."""
    step_tokens: PositiveInt = 64
    """Tokens that engines draw of each response before it is decided whether the iteration has ended. What they drew behind its
    end is thrown away: more tokens waste more, and fewer have the responses read again more often."""
    max_iterations: int = Field(default=4, ge=2)
    """Iterations in which a response may be drawn; the last of them does not end before it has."""


class RolloutSpec(SpecModel):
    """How responses are sampled."""

    engine: RolloutEngineSpec = TorchRollout()
    samples_per_prompt: PositiveInt = 8
    """Responses per prompt: the group size of GRPO."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, also applied to the trainer's log-probabilities."""
    top_p: PositiveFloat = Field(default=1.0, le=1.0)
    """Nucleus sampling. Below 1 the engine renormalises probabilities, which widens the gap between sampler and trainer
    unless `algorithm.sampler_support` is `replay`."""
    top_k: PositiveInt | None = None
    """Samples only from this many likeliest tokens (more if several are equally likely as the last one); `null`: from
    all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Samples only from tokens at least this fraction as likely as the likeliest one (arXiv 2407.01082); 0: from all."""
    repetition_penalty: PositiveFloat = Field(default=1.0, le=10.0)
    """Divides the positive logits of tokens that occur in the prompt or the response so far, and multiplies the negative
    ones; above 1 discourages repetition (arXiv 1909.05858)."""
    max_new_tokens: PositiveInt = 256
    """Maximum number of tokens generated by the policy over all its turns; a response that has not ended by then
    is marked as truncated."""
    min_new_tokens: NonNegativeInt = 0
    """Number of tokens before which no token that ends a response is sampled; with tools, in the first turn. Less than
    `max_new_tokens`."""
    batch_samples: PositiveInt = 256
    """Maximum number of responses in a decode batch; a shard is generated, and saved in case of a crash, batch
    by batch."""
    stop: tuple[str, ...] = ()
    """Strings that end a response, in addition to the model's end-of-sequence token; each must be a single token
    of the model."""
    thoughts: ThoughtMarks | None = None
    """What separates thoughts from the final text of a response; `null`: the marks of the model's chat template, or `<think>`
    and `</think>`."""
    tools: ToolsSpec | None = None
    """`null`: a response is a single turn."""
    slice_tokens: PositiveInt | None = None
    """New tokens that a response gets in a round at most. What has not ended is sealed with what it has, and goes on in a later
    iteration, under newer weights. `null`: every response is drawn whole, in one iteration."""
    max_slices: PositiveInt = 4
    """Iterations in which a response may be drawn; in the last of them it goes on to its end. Used with `slice_tokens`."""
    in_flight: PositiveInt | None = None
    """Prompts whose responses are begun and not learnt from yet, at least `data.prompts_per_iteration`; more keep the engines
    full. `null`: twice as many as an iteration learns from. Used with `slice_tokens`."""
    tail: TailSpec | None = None
    """`null`: an iteration waits for its longest responses, unless `slice_tokens` ends them."""

    @property
    def reshapes(self) -> bool:
        """True if tokens are sampled from another distribution than the model's at `temperature`, apart from `top_p`."""
        plain = (None, 0.0, 1.0, 0)
        return (self.top_k, self.min_p, self.repetition_penalty, self.min_new_tokens) != plain

    @property
    def max_turns(self) -> int:
        """Maximum number of turns of a response."""
        return 1 if self.tools is None else self.tools.max_turns

    @property
    def max_response_tokens(self) -> int:
        """Maximum number of tokens of a response: the policy's, plus those of tool results between its turns."""
        return self.max_new_tokens + (0 if self.tools is None else (self.max_turns - 1) * self.tools.max_result_tokens)

    @model_validator(mode="after")
    def _room_to_end(self) -> Self:
        if self.min_new_tokens >= self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is not less than max_new_tokens {self.max_new_tokens}: no response "
                f"could end by itself; expected at most {self.max_new_tokens - 1}"
            )
        return self

    @model_validator(mode="after")
    def _only_with_slices(self) -> Self:
        given = [name for name in ("max_slices", "in_flight") if name in self.model_fields_set]
        if self.slice_tokens is None and any(
            getattr(self, name) != RolloutSpec.model_fields[name].default for name in given
        ):
            raise ValueError(f"{given[0]}: counts slices, but slice_tokens is null; leave it out, or set slice_tokens")
        return self

    @model_validator(mode="after")
    def _group_in_a_batch(self) -> Self:
        if self.batch_samples < self.samples_per_prompt:
            raise ValueError(
                f"batch_samples {self.batch_samples} is less than samples_per_prompt {self.samples_per_prompt}: "
                "all responses to a prompt are decoded in one batch"
            )
        return self


def no_room(rollout: RolloutSpec, longest_prompt: int, positions: int, named: str) -> str:
    """Returns the message for a response that takes all positions of the model.

    longest_prompt: maximum tokens of a prompt.
    named: the positions as the message calls them.
    """
    results = rollout.max_response_tokens - rollout.max_new_tokens
    tools = f" plus {results} for tool results" if results else ""
    remedy = "fewer rollout.tools.max_turns or max_result_tokens"
    left = positions - results
    if left > 1:
        fitting = left - min(longest_prompt, left // 2)
        remedy = f"at most {left - 1}, such as {fitting}, which leaves prompts {left - fitting} tokens"
    return (
        f"rollout.max_new_tokens: {rollout.max_new_tokens}{tools} leaves no room for a prompt in {named}; "
        f"expected {remedy}"
    )
