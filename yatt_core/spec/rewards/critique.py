"""Rewards of single steps: which part says what steps of a response are wrong, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from yatt_core.spec.base import SpecModel
from yatt_core.spec.rewards.judges import JudgePart, RewardModelPart
from yatt_core.spec.rewards.parsing import WrongSteps
from yatt_core.spec.rewards.parts import RewardPartBase
from yatt_core.spec.rewards.steps import BlankLines, StepSplit


class CritiqueSpec(SpecModel):
    """Credit assignment by critique (CAPO, arXiv 2508.02298): each token has a reward of its own, the response's reward
    times `outcome_weight`, minus `wrong_step_penalty` if the token is in a wrong step. The algorithm normalises these
    rewards over all tokens of the responses to a prompt.
    """

    part: str = Field(min_length=1)
    """The part of `rewards.parts` that names wrong steps, with weight 0: a judge with `parse: {kind: wrong_steps}`, whose
    `judgements` are the critiques, or a function `(prompt, steps)`. Its value is the number of wrong steps."""
    steps: StepSplit = BlankLines()
    """How a response is cut into steps."""
    reads: Literal["final", "response"] = "final"
    """What is cut into steps: the response without its thoughts, or all of it. Tokens of thoughts that are not cut belong
    to no step, so that no penalty is subtracted from their rewards."""
    vote: Literal["intersection", "majority", "union", "average", "greedy"] = "intersection"
    """Which steps count as wrong: those named by all critiques, by at least half of them, or by any of them. `average`:
    the penalty is multiplied by the fraction of critiques that name the step. `greedy`: a single critique decides."""
    outcome_weight: float = Field(default=2.0, gt=0, le=1e6)
    """C: factor of the response's reward, the weighted sum of all parts."""
    wrong_step_penalty: float = Field(default=1.0, ge=0, le=1e6)
    """P: subtracted from the reward of each token of a wrong step."""


def critique_mistakes(
    critique: CritiqueSpec | None, parts: Sequence[RewardPartBase], judges: Sequence[JudgePart], accuracy_name: str
) -> Iterator[str]:
    """Yields the contradictions between a critique and the parts, each starting with the key."""
    for judge in judges:
        if _names_steps(judge) and (critique is None or judge.name != critique.part):
            yield (
                f"rewards.parts {judge.name!r}: parse.kind wrong_steps is for critiques; expected rewards.critique with "
                f"part: {judge.name}"
            )
    if critique is None:
        return
    part = next((part for part in parts if part.name == critique.part), None)
    if part is None:
        yield f"rewards.critique.part: there is no part {critique.part!r}; expected one of {[one.name for one in parts]}"
        return
    if part.name == accuracy_name:
        yield (
            f"rewards.critique.part: {part.name!r} decides whether a response is correct; expected another part, or "
            "rewards.accuracy_part with the name of another one"
        )
    if part.weight:
        yield (
            f"rewards.parts {part.name!r}: weight: its value is the number of wrong steps, for which "
            f"rewards.critique.wrong_step_penalty is subtracted; expected 0 (given: {part.weight:g})"
        )
    for judge in (judge for judge in judges if judge.name == critique.part):
        if not _names_steps(judge):
            yield f"rewards.parts {judge.name!r}: a critique names wrong steps; expected parse: {{kind: wrong_steps}}"
        if critique.vote == "greedy" and judge.judgements > 1:
            yield (
                f"rewards.parts {judge.name!r}: judgements: with rewards.critique.vote greedy, a single critique decides; "
                f"expected 1 (given: {judge.judgements})"
            )


def _names_steps(judge: JudgePart) -> bool:
    return not isinstance(judge, RewardModelPart) and isinstance(judge.parse, WrongSteps)
