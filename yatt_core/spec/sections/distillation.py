"""On-policy distillation: whose log-probabilities the policy's own tokens are compared with, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.model import GivenModelSpec
from yatt_core.spec.template import ANSWER, PROMPT, fields_of


class TeacherSpec(SpecModel):
    """A frozen model of any size with the policy's tokenizer, and the iterations in which it teaches."""

    model: GivenModelSpec
    """It is loaded on the trainer's ranks when its first iteration begins, and dropped after its last."""
    weight: PositiveFloat = 1.0
    """Its part in the mixture of the teachers of an iteration; their weights are divided by their sum."""
    first_iteration: PositiveInt = 1
    """The first iteration in which it teaches."""
    last_iteration: PositiveInt | None = None
    """The last iteration in which it teaches; `null`: until the end."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.last_iteration is not None and self.last_iteration < self.first_iteration:
            raise ValueError(f"last_iteration {self.last_iteration} is before first_iteration {self.first_iteration}")
        return self

    def teaches(self, iteration: int) -> bool:
        """Returns True if it is a teacher of an iteration, counted from 1."""
        return self.first_iteration <= iteration and (self.last_iteration is None or iteration <= self.last_iteration)


class PrivilegedSpec(SpecModel):
    """The policy as its own teacher: it scores its answers after a prompt that shows the solution (arXiv 2601.19897)."""

    template: str = Field(
        default="{prompt}\n\nA correct answer to this is:\n{answer}\n\nNow answer in your own words.", min_length=1
    )
    """What the teacher gets in place of the prompt (of the last message, in a conversation), with the placeholders
    `{prompt}` and `{answer}` (the reference answer); a literal brace is written `{{` or `}}`. It has to fit
    `data.max_prompt_tokens`."""
    teacher_interval: PositiveInt | None = None
    """Number of iterations after each of which the teacher's weights become the policy's. `null`: they stay those of before
    the first iteration. 1: the teacher is the policy before the iteration's first step; no second copy of the weights is
    held, but nothing keeps teacher and policy from drifting away together."""

    @property
    def keeps_teacher(self) -> bool:
        """Whether the teacher has other weights than the policy before an iteration's first step."""
        return self.teacher_interval != 1

    @field_validator("template")
    @classmethod
    def _shows_the_answer(cls, template: str) -> str:
        fields = fields_of(template)
        if unknown := sorted(fields - {PROMPT, ANSWER}):
            raise ValueError(f"unknown placeholder {{{unknown[0]}}}; expected {{prompt}} and {{answer}}")
        if fields != {PROMPT, ANSWER}:
            raise ValueError("the template must contain both {prompt} and {answer}")
        return template


class DistillationSpec(SpecModel):
    """On-policy distillation: a teacher scores each token of the policy (arXiv 2306.13649)."""

    teachers: tuple[TeacherSpec, ...] = ()
    """The teachers. Those of one iteration are mixed: the probability of a token is the weighted mean of theirs. Teachers
    with different iterations follow each other, as from a small one to a large one."""
    privileged: PrivilegedSpec | None = None
    """Self-distillation: earlier weights of the policy teach it. `null`: `teachers` do."""
    coefficient: PositiveFloat = 1.0
    """Factor of log(policy / teacher) of a token, which is subtracted from the token's advantage: the gradient of
    the reverse KL. With `top_k`: factor of the divergence in the loss."""
    top_k: PositiveInt | None = Field(default=None, le=1024)
    """Number of the teacher's likeliest tokens with which the policy's whole distribution is compared: the loss gets the
    reverse KL divergence over these tokens and the rest of the vocabulary as one (arXiv 2608.14728), which varies less than
    one sampled token. `null`: the sampled token alone, in its advantage."""

    @model_validator(mode="after")
    def _somebody_teaches(self) -> Self:
        if bool(self.teachers) == (self.privileged is not None):
            raise ValueError("expected either teachers or privileged")
        return self

    def of(self, iteration: int) -> tuple[TeacherSpec, ...]:
        """Returns the teachers of an iteration, counted from 1."""
        return tuple(teacher for teacher in self.teachers if teacher.teaches(iteration))

    def mistakes(self, iterations: int) -> Iterator[str]:
        """Yields the first iteration without a teacher, if there is one."""
        changes = {1} | {each.last_iteration + 1 for each in self.teachers if each.last_iteration is not None}
        bare = sorted(at for at in changes if at <= iterations and not self.of(at))
        if self.teachers and bare:
            yield (
                f"algorithm.distillation.teachers: nobody teaches in iteration {bare[0]}; expected first_iteration and "
                f"last_iteration to cover iterations 1 to {iterations}"
            )
