"""How and when the policy is measured on the held-out tasks."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.finishing import FinishSpec

ANSWER_GROUP = "(?P<answer>"
"""What a pattern needs to name the part that is the answer."""


class VoteSpec(SpecModel):
    """Which part of a response is the answer that it votes for; answers are compared without surrounding white space."""

    extract: Literal["whole", "tag", "boxed", "last_number", "pattern"] = "whole"
    r"""`whole`: all of the last turn's text; `tag`: the last element `<TAG>...</TAG>`; `boxed`: the last `\boxed{...}`;
    `last_number`: the last number; `pattern`: the group `answer` of the first match. A response without it has no vote."""
    tag: str = Field(default="answer", pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Name of the element for `tag`."""
    pattern: str | None = None
    """RE2 regular expression with a group `(?P<answer>...)`, for `pattern`."""

    @model_validator(mode="after")
    def _pattern_if_used(self) -> Self:
        if (self.extract == "pattern") != (self.pattern is not None):
            raise ValueError("pattern is required with extract: pattern, and only allowed there")
        return self

    @field_validator("pattern")
    @classmethod
    def _finds_an_answer(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        if ANSWER_GROUP not in pattern:
            raise ValueError("the pattern needs a group (?P<answer>...)")
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            pc.extract_regex(pa.array([""]), pattern=pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"is not an RE2 regular expression with named groups only: {error}") from None
        return pattern


class EvaluationSampling(SpecModel):
    """Several sampled answers to each held-out task."""

    samples: int = Field(default=8, ge=1, le=4096)
    """Number of answers to each task."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: PositiveFloat = Field(default=1.0, le=1.0)
    """Nucleus sampling."""
    pass_at: tuple[PositiveInt, ...] = ()
    """For each k, estimates the probability that at least one of k answers is correct, without bias
    (arXiv 2107.03374); k is at most `samples`."""
    vote: VoteSpec | None = None
    """If set, the accuracy of the most frequent answer of each task is measured too (majority vote)."""

    @model_validator(mode="after")
    def _enough_samples(self) -> Self:
        if len(set(self.pass_at)) < len(self.pass_at):
            raise ValueError(f"pass_at: each k can be listed once only, not {list(self.pass_at)}")
        if self.pass_at and max(self.pass_at) > self.samples:
            raise ValueError(
                f"pass_at: {max(self.pass_at)} is more than samples {self.samples}; expected at most {self.samples}, or more "
                "samples"
            )
        if self.vote is not None and self.samples < 2:
            raise ValueError(f"vote: a vote needs 2 samples or more, not {self.samples}")
        return self


class PromotionRule(SpecModel):
    """When a checkpoint becomes candidate: once it beats the champion, or iteration 0 without one, on the held-out tasks.

    Both must have been evaluated with the same tasks. With `gates.promotion`, people are asked whether a candidate becomes
    champion.
    """

    test: Literal["mcnemar", "bootstrap"] = "mcnemar"
    """`mcnemar`: the exact one-sided test over the tasks whose results differ. `bootstrap`: the mean difference over tasks
    drawn with replacement."""
    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    """Maximum p-value at which a checkpoint counts as better."""
    resamples: int = Field(default=10_000, ge=100, le=1_000_000)
    """Number of resamples of `bootstrap`."""


class ScheduledSuite(SpecModel):
    """A suite on which each kept checkpoint is evaluated, in a process beside the run."""

    path: Annotated[str, Names("path")]
    """The suite's file, relative to the spec's folder."""
    devices: str | None = Field(default=None, pattern=r"^[0-9]+(,[0-9]+)*$")
    """Numbers of the GPUs of the process, such as `6,7`; `null`: those that the driver sees."""


class EvaluationSpec(SpecModel):
    """Accuracy on the held-out tasks; the first and last iterations are always evaluated."""

    every: NonNegativeInt = 20
    """Iterations between evaluations; 0: only the first and the last iteration are evaluated."""
    sampling: EvaluationSampling | None = None
    """`null`: one greedy answer to each task."""
    promotion: PromotionRule | None = None
    """`null`: only people promote checkpoints."""
    suites: tuple[ScheduledSuite, ...] = ()
    """Suites on which kept checkpoints are evaluated while the run goes on."""

    deadline: FinishSpec | None = None
    """Leaves out the tasks that are not answered in time; no figure counts them. `null`: waits for every answer."""

    @property
    def needs_responses(self) -> bool:
        """True if a setting has no meaning for a run that generates nothing."""
        return self.sampling is not None or self.promotion is not None or bool(self.suites) or self.deadline is not None

    @property
    def samples(self) -> int:
        """Number of answers to each task."""
        return 1 if self.sampling is None else self.sampling.samples
