"""Which of the sampled groups an update learns from, and how many prompts are drawn to find enough of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from yatt_core.spec.base import SpecModel


class OverDispatchSpec(SpecModel):
    """More prompts than wanted are sent out, and stragglers are cut as soon as enough groups are there.

    What is cut follows the clock, so that the run cannot be exact; the cut set is recorded before anything is learnt. It is
    biased: slow shards are those with long responses, so that the policy learns from fewer of these than it samples.
    """

    factor: float = Field(default=1.25, gt=1.0, le=4.0)
    """Prompts sent out, relative to those that a wave wants."""


class AllGroups(SpecModel):
    """Every group is learnt from; one wave."""

    kind: Literal["all"] = "all"
    overdispatch: OverDispatchSpec | None = None
    """`null`: every response is waited for."""


class WavesSpec(SpecModel):
    """Prompts are drawn in waves until `data.prompts_per_iteration` groups are valid: DAPO's dynamic sampling (arXiv 2503.14476).

    A group is valid when its largest reward is larger than its smallest: else its advantages are all zero. A wave draws
    ceil(groups still missing x average x `overdraw`) prompts; behind it the average of prompts per valid group moves, once.
    """

    max_waves: PositiveInt = 4
    """Most waves of an iteration, the first included; what is missing behind the last is padded with masked groups."""
    ratio_cap: float = Field(default=10.0, ge=1.0, le=1000.0)
    """Most prompts per valid group that a wave counts for in the average, also for one without any valid group."""
    overdraw: float = Field(default=1.2, ge=1.0, le=10.0)
    """Reserve against chance: prompts of a wave, relative to what the average asks for."""
    decay: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Share of the average that stays when a wave moves it; it begins at 1."""
    overdispatch: OverDispatchSpec | None = None
    """`null`: every response is waited for."""


class ValidGroups(WavesSpec):
    """Valid groups are learnt from, with all of their samples."""

    kind: Literal["valid_group"] = "valid_group"


class BestAndWorst(WavesSpec):
    """Of each valid group the samples with the highest and the lowest rewards are learnt from (arXiv 2504.13818).

    Advantages are computed over the kept samples. Of equal rewards the sample with the lower number is kept.
    """

    kind: Literal["best_and_worst"] = "best_and_worst"
    keep: PositiveInt = 2
    """Samples to keep at either end, so that a group has twice as many."""


DynamicSamplingSpec = Annotated[AllGroups | ValidGroups | BestAndWorst, Field(discriminator="kind")]
