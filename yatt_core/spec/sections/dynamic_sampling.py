"""Which sampled groups an update learns from, and how many prompts are drawn to find enough of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.finishing import FinishSpec


class OverDispatchSpec(SpecModel):
    """Begins more prompts than needed, and ends an iteration as soon as enough groups are complete, counted in tokens.

    An earlier name of `rollout.tail`, with the defaults of its other keys: the longer responses go on in later iterations, and
    nothing depends on timing. Runs of earlier versions whose other features exclude it draw more prompts and wait for them all.
    """

    factor: float = Field(default=1.25, gt=1.0, le=4.0)
    """Prompts that are begun, relative to the number that is needed."""


class RefillSpec(SpecModel):
    """Draws further prompts in place of samples that have no score, so that updates learn from as many samples as planned.

    What is missing is counted in samples; ceil(missing / `rollout.samples_per_prompt`) prompts are drawn, in waves of their own.
    """

    above: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Largest fraction of an iteration's samples that may lack a score without prompts being drawn in their place."""
    max_waves: int = Field(default=3, ge=2, le=100)
    """Maximum number of waves per iteration, including the first."""


class AllGroups(SpecModel):
    """Learns from every group; draws a single wave, and further ones only in place of samples without a score."""

    kind: Literal["all"] = "all"
    refill: RefillSpec | None = RefillSpec()
    """`null`: learns from fewer samples if some have no score."""
    overdispatch: OverDispatchSpec | None = None
    """As `rollout.tail`. `null`: waits for every response."""
    deadline: FinishSpec | None = None
    """Leaves out the logical shards that are not sealed in time; their prompts are passed over. `null`: waits."""


class WavesSpec(SpecModel):
    """Draws prompts in waves until `data.prompts_per_iteration` groups are valid: DAPO's dynamic sampling.

    See arXiv 2503.14476. A group is valid if its highest reward exceeds its lowest; otherwise all its
    advantages are zero. A wave draws ceil(missing groups x average x `overdraw`) prompts; after each wave the
    running average of prompts per valid group is updated once.
    """

    max_waves: PositiveInt = 4
    """Maximum number of waves per iteration, including the first; groups still missing after the last are padded
    with masked groups."""
    ratio_cap: float = Field(default=10.0, ge=1.0, le=1000.0)
    """Maximum number of prompts per valid group that a wave contributes to the average, also used for a wave
    without any valid group."""
    overdraw: float = Field(default=1.2, ge=1.0, le=10.0)
    """Safety margin: prompts drawn in a wave, relative to the number that the average predicts."""
    decay: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the running average, which starts at 1: the fraction of its old value that a wave keeps."""
    overdispatch: OverDispatchSpec | None = None
    """As `rollout.tail`. `null`: waits for every response."""
    deadline: FinishSpec | None = None
    """Leaves out the logical shards that are not sealed in time; their prompts are passed over. The wave in progress is
    then the last. `null`: waits."""


class ValidGroups(WavesSpec):
    """Learns from all samples of valid groups."""

    kind: Literal["valid_group"] = "valid_group"


class BestAndWorst(WavesSpec):
    """Learns from the samples with the highest and the lowest rewards of each valid group (arXiv 2504.13818).

    Advantages are computed over the kept samples. Ties are resolved in favour of the sample with the lower
    index.
    """

    kind: Literal["best_and_worst"] = "best_and_worst"
    keep: PositiveInt = 2
    """Samples to keep at each end, so that each group keeps twice as many."""


DynamicSamplingSpec = Annotated[AllGroups | ValidGroups | BestAndWorst, Field(discriminator="kind")]


def misfits(sampling: DynamicSamplingSpec, samples: int, wanted: int, shards: int) -> Iterator[str]:
    """Yields one line per contradiction with the rest of the spec, each starting with the key.

    samples: of a prompt.
    wanted: prompts of an iteration.
    shards: logical shards of an iteration.
    """
    if isinstance(sampling, BestAndWorst) and 2 * sampling.keep > samples:
        yield (
            f"dynamic_sampling.keep: {sampling.keep} best and {sampling.keep} worst samples are more than "
            f"rollout.samples_per_prompt {samples}; expected at most {samples // 2}"
        )
    if sampling.deadline is not None and min(shards, wanted) < 2:
        yield "dynamic_sampling.deadline: with one logical shard nothing can be left out; raise data.logical_shards"
