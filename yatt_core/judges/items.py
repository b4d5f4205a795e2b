"""What a judge is asked about a response.

Consumes a reward part, a prompt and a completion. Produces a `JudgeItem` with what the part reads and its template shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from yatt_core.prompts.prompt import Completion, Message
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.judges import JudgePart
from yatt_core.spec.template import FINAL, THOUGHTS, fields_of


def judge_item(
    part: JudgePart,
    number: int,
    prompt: str,
    completion: Completion,
    answer: str | None,
    seeds: tuple[int, ...],
    steps: tuple[str, ...] = (),
    messages: Sequence[Message] = (),
) -> JudgeItem:
    """Returns the item; the arguments after the part are its fields."""
    shown = frozenset[str]() if part.template is None else fields_of(part.template)
    return JudgeItem(
        number=number,
        prompt=prompt,
        response=completion.read(part.reads),
        answer=answer,
        seeds=seeds,
        steps=steps,
        thoughts=completion.thoughts if THOUGHTS in shown else "",
        final=completion.final if FINAL in shown else "",
        messages=tuple((message.role, message.content) for message in messages),
    )
