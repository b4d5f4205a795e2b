"""Rows whose responses are learnt as they are: conversations, prompts with completions, Alpaca's instructions, plain text.

Consumes a table. Produces a `Recognised`, or None for other rows. Raises `ConfigurationError` for conversations that end in
the middle, for thoughts in a column of their own, and for tools and images that the model cannot show.
"""

from __future__ import annotations

from collections.abc import Mapping

from ops.starter.recognition.prompt_parts import (
    CONVERSATIONS,
    PROMPT_KEYS,
    conversation_source,
    prompt_parts,
    refuse_images,
    tools_key,
)
from ops.starter.recognition.recognised import SFT, Abilities, Recognised, RecognitionOptions
from ops.starter.recognition.table import Table, ends_with, given_key, is_response, is_text, messages_in, parsed
from ops.starter.recognition.thoughts import refuse_thoughts
from yatt_core.errors import ConfigurationError

COMPLETIONS = ("completion", "response", "output", "reply", "assistant", "answer", "solution", "target", "chosen")
CERTAIN = COMPLETIONS[:5]
"""Keys of demonstrations; the others have one only for those who ask for SFT."""


def conversations(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns conversations that end with the assistant's message as demonstrations; all of the assistant's turns are learnt."""
    if not asked.allows(SFT):
        return None
    keys = (asked.prompt_field,) if asked.prompt_field else CONVERSATIONS
    key = next((key for key in table.all(*keys) if any(map(ends_with("assistant"), table.values(key)))), None)
    if key is None:
        return None
    for number, row in enumerate(table.values(key), start=1):
        messages = messages_in(row)
        if messages is None or messages[-1][0] != "assistant":
            ends = "is no list of messages" if messages is None else f"ends with a message of {messages[-1][0]!r}"
            raise ConfigurationError(
                f"row {number}: {key!r} {ends}, while others end with the assistant's; leave such rows out, or cut them "
                "behind the assistant's last message"
            )
    if asked.prompt_field is None:
        refuse_thoughts(table, key, "--prompt-field")
    source = conversation_source(table, key, model)
    return Recognised(
        shape=f"demonstrations: conversations in {key!r}, of which {_learnt(table, key)} are learnt",
        objective=SFT,
        source=source,
        used=tuple(source.values()),
    )


def _learnt(table: Table, key: str) -> str:
    """Returns which turns are learnt, in words."""
    turns = (turn for value in table.values(key) for turn in parsed(value))
    weighed = any(isinstance(turn, Mapping) and turn.get("weight") == 0 for turn in turns)
    return "the assistant's turns without the weight 0" if weighed else "all turns of the assistant"


def alpaca(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns instructions with an output as demonstrations; `input` belongs to the instruction where it is not empty."""
    instruction = table.find("instruction")
    output = table.find("output")
    if instruction is None or output is None or not asked.allows(SFT) or asked.prompt_field or asked.answer_field:
        return None
    if not (table.mostly(instruction, is_text) and table.mostly(output, is_text)):
        return None
    return _with_completion(
        table=table,
        asked=asked,
        model=model,
        prompts=(instruction,),
        completion=output,
        shape="Alpaca's instructions with outputs",
    )


def completions(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns prompts with a completion as demonstrations, both as text or as messages."""
    if not asked.allows(SFT):
        return None
    keys = COMPLETIONS if asked.objective == SFT else CERTAIN
    given = asked.answer_field and given_key(table, asked.answer_field, "--answer-field")
    found = [given] if given else [key for key in table.all(*keys) if table.mostly(key, is_response)]
    for completion in found:
        prompts = [key for key in PROMPT_KEYS if key != completion]
        recognised = _with_completion(
            table=table,
            asked=asked,
            model=model,
            prompts=prompts,
            completion=completion,
            shape="prompts with completions",
        )
        if recognised is not None:
            return recognised
    return None


def plain_text(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns rows with nothing but a text as demonstrations without a prompt: the whole text is learnt."""
    key = asked.answer_field or table.find("text", "content")
    if key is None or not asked.allows(SFT) or asked.prompt_field or not table.mostly(key, is_text):
        return None
    rendered = sum(1 for text in table.values(key) if any(mark in text for mark in model.frame)) >= len(table.rows) / 2
    reason = ("the texts have the control tokens of this model, so no chat template is applied",) if rendered else ()
    return Recognised(
        shape=f"plain text in {key!r}, learnt as a whole",
        objective=SFT,
        source={"prompt_field": None, "answer_field": key, **({"rendered": True} if rendered else {})},
        used=(key,),
        reasons=reason,
    )


def _with_completion(
    table: Table,
    asked: RecognitionOptions,
    model: Abilities,
    prompts: tuple[str, ...] | list[str],
    completion: str,
    shape: str,
) -> Recognised | None:
    parts = prompt_parts(table, asked, model, prompts, answer=completion)
    if parts is None or completion in parts.used:
        return None
    refuse_images(table)
    if asked.answer_field is None:
        refuse_thoughts(table, completion, "--objective sft --answer-field")
    used = [*parts.used, completion]
    source = {**parts.source, "answer_field": completion}
    if (tools := tools_key(table, completion, model)) is not None:
        source["tools_field"] = tools
        used.append(tools)
    return Recognised(
        shape=f"demonstrations: {shape}, prompts in {parts.used[0]!r}, responses in {completion!r}",
        objective=SFT,
        source=source,
        used=tuple(used),
        reasons=parts.reasons,
    )
