"""What a row's prompt consists of: the key of the question, and the keys without which it does not mean what it should.

Consumes a table. Produces a `PromptParts`. Raises `ConfigurationError` where the parts are there but cannot be put together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ops.starter.recognition.beside import refuse_beside
from ops.starter.recognition.choices import AnswerChoices, choices_of, named
from ops.starter.recognition.recognised import Abilities, RecognitionOptions
from ops.starter.recognition.table import (
    MOST_OF,
    Table,
    given_key,
    has_calls,
    is_prompt,
    is_text,
    messages_in,
    text_of,
    value_of,
)
from yatt_core.errors import ConfigurationError

PROMPT_KEYS = (
    "prompt", "question", "problem", "instruction", "query", "messages", "conversations", "conversation", "input", "text",
    "user", "task", "description",
)  # fmt: skip
VAGUE = ("user", "task", "description")
"""Keys among these that have a name or a category as often as a prompt."""
BEFORE = ("context", "passage", "document", "article", "story", "background", "paragraph", "body")
"""Keys of texts that a question is about."""
AFTER = ("input", "starter_code", "starter code")
"""Keys of texts that belong to an instruction."""
CONVERSATIONS = ("messages", "conversations", "conversation", "dialog", "dialogue", "chat", "turns", "prompt")
SYSTEM_KEYS = ("system", "system_prompt", "system_message")
TOOL_KEYS = ("tools", "functions", "available_tools")
IMAGE_KEYS = ("images", "image", "image_path", "image_paths")
FEWEST = 4
"""Rows from which on it is odd that most of them ask the same."""
_CONTROL = re.compile(r"\s*(<\|[A-Za-z_]+\|>|\[INST\]|<start_of_turn>|<\|turn>|<s>)")


@dataclass(frozen=True, slots=True)
class PromptParts:
    """Where the rows have their prompts.

    source: the keys of the spec's source.
    texts: the text that is asked in each row, as far as rewards have to know it; empty for a row without a prompt.
    choices: the answers to choose from, if they have keys of their own.
    """

    source: Mapping[str, Any]
    texts: Sequence[str]
    used: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    choices: AnswerChoices | None = None


def prompt_parts(
    table: Table,
    asked: RecognitionOptions,
    model: Abilities,
    keys: Sequence[str] = PROMPT_KEYS,
    answer: str | None = None,
    asks: bool = False,
    solved: bool = False,
) -> PromptParts | None:
    """Returns the parts of the prompts; None if no key looks like a prompt.

    keys: candidates for the question, in order of preference.
    answer: the key of what answers it, which says what choices are called.
    asks: whether prompts with choices have to ask for what this key has.
    solved: whether code beside the question is its solution, and nothing that it is about.
    """
    key = prompt_key(table, asked, keys)
    if key is None:
        return None
    texts = [text_of(value_of(row, key)) for row in table.rows]
    parts = PromptParts({"prompt_field": key}, texts, (key,))
    if asked.prompt_field is None and all(messages_in(value) is None for value in table.values(key)):
        parts = _with_template(table, parts, choices_of(table, key, answer, asks), solved)
    parts = _with_media(table, _with_frame(_with_system(table, parts), model), model)
    if asked.prompt_field is None and "image_field" not in parts.source:
        _check_differ(table, parts)
    return parts


def prompt_key(table: Table, asked: RecognitionOptions, keys: Sequence[str] = PROMPT_KEYS) -> str | None:
    """Returns the key of the question; None if there is none. Raises `ConfigurationError` if the given one is missing."""
    if asked.prompt_field is not None:
        return given_key(table, asked.prompt_field, "--prompt-field")
    found = (key for key in table.all(*keys) if table.mostly(key, is_prompt))
    return next((key for key in found if key.strip().lower() not in VAGUE or texts_differ(table, key)), None)


def texts_differ(table: Table, key: str) -> bool:
    """Returns whether texts of several words differ between most rows, as prompts do and names and categories do not."""
    texts = [text_of(value).strip() for value in table.values(key)]
    return len(set(texts)) > len(texts) / 2 and sum(1 for text in texts if len(text.split()) > 1) > len(texts) / 2


def _check_differ(table: Table, parts: PromptParts) -> None:
    """Raises `ConfigurationError` if most rows ask the same: then it is a category, or something else belongs to it."""
    asked = Counter(repr([value_of(row, key) for key in parts.used]) for row in table.rows)
    ((_, most),) = asked.most_common(1)
    if len(table.rows) >= FEWEST and most > len(table.rows) / 2:
        key = parts.used[0]
        raise ConfigurationError(
            f"the prompts under {key!r} are the same in {most} of the first {len(table.rows)} rows ({parts.texts[0]!r:.60}); "
            f"expected a prompt of its own in most rows (--prompt-field {key} takes them as they are)"
        )


def template_of(table: Table, key: str, before: str | None, after: str | None, choices: AnswerChoices | None) -> str:
    """Returns a Jinja template of a question with what belongs to it."""
    first = _if_any(table, before, f"{{{{ {named(before)} }}}}\n\n") if before else ""
    last = _if_any(table, after, f"\n\n{{{{ {named(after)} }}}}") if after else ""
    return f"{first}{{{{ {named(key)} }}}}{last}{choices.template if choices else ''}"


def _if_any(table: Table, key: str, text: str) -> str:
    """Returns a part of a template that stands only where a row has a value."""
    test = named(key) if table.complete(key.split(".")[0]) else f"{named(key)} is defined and {named(key)}"
    return f"{{% if {test} %}}{text}{{% endif %}}"


def _with_template(table: Table, parts: PromptParts, choices: AnswerChoices | None, solved: bool) -> PromptParts:
    """Returns the parts with what a question is about, and with the answers to choose from."""
    key = parts.used[0]
    before = _belonging(table, key, BEFORE)
    after = _belonging(table, key, AFTER)
    refuse_beside(table, key, solved)
    if before is None and after is None and choices is None:
        return parts
    reasons = [f"the prompt is {key!r} with {other!r}" for other in (before, after) if other]
    if choices:
        reasons.append(f"the prompt is {key!r} with the choices in {choices.key!r}")
    return replace(
        parts,
        source={"prompt_template": template_of(table=table, key=key, before=before, after=after, choices=choices)},
        texts=[
            _with_parts(row, text, (before, after), choices) for row, text in zip(table.rows, parts.texts, strict=True)
        ],
        used=(*parts.used, *(other for other in (before, after, *(choices.used if choices else ())) if other)),
        reasons=(*parts.reasons, *reasons),
        choices=choices,
    )


def _with_parts(row: Mapping[str, Any], text: str, others: Sequence[str | None], choices: AnswerChoices | None) -> str:
    """Returns a question with the texts that belong to it, in which rewards look for the form of the answer."""
    found = [str(value) for key in others if key is not None and (value := value_of(row, key))]
    return "\n\n".join([text, *found]) + (choices.asks if choices else "")


def _belonging(table: Table, question: str, keys: Sequence[str]) -> str | None:
    """Returns a key whose texts belong to the question and are not in it yet.

    Raises `ConfigurationError` if they are no texts: a question about something that is not shown has no right answer.
    """
    for key in table.all(*keys):
        if key == question or not table.values(key):
            continue
        rows = [row for row in table.rows if value_of(row, key) not in (None, "")]
        if not all(isinstance(value_of(row, key), str) for row in rows):
            raise ConfigurationError(
                f"the questions under {question!r} are about {key!r}, which is not text; name a key that has both with "
                f"--prompt-field (--prompt-field {question} leaves {key!r} out)"
            )
        texts = [row for row in rows if is_text(value_of(row, key))]
        contained = sum(1 for row in texts if value_of(row, key) in str(value_of(row, question)))
        if texts and contained < MOST_OF * len(texts):
            return key
    return None


def system_key(table: Table, prompt: str) -> str | None:
    """Returns the key of the rows' system messages; None if there is none, or if the conversations have their own.

    Raises `ConfigurationError` if a row has two different ones.
    """
    found = [key for key in table.all(*SYSTEM_KEYS) if any(map(is_text, table.values(key)))]
    own = [messages[0][1] if messages and messages[0][0] == "system" else None for messages in _each(table, prompt)]
    for number, row in enumerate(table.rows, start=1):
        texts = {key: text for key in found if (text := value_of(row, key))}
        if (first := own[number - 1]) is not None:
            texts[prompt] = first
        if len({str(text).strip() for text in texts.values()}) > 1:
            raise ConfigurationError(
                f"row {number} has different system messages: "
                f"{', '.join(f'{text!r:.60} under {key!r}' for key, text in texts.items())}; leave out all but the right one"
            )
    return None if any(text is not None for text in own) else next(iter(found), None)


def _each(table: Table, key: str) -> list[list[tuple[str, str]] | None]:
    return [messages_in(value_of(row, key)) for row in table.rows]


def tools_key(table: Table, conversation: str, model: Abilities) -> str | None:
    """Returns the key of the tools that a row describes; refuses them for a model that cannot show them."""
    key = next((key for key in table.all(*TOOL_KEYS) if table.values(key)), None)
    if key is not None and not model.tools:
        raise ConfigurationError(
            f"the rows of {conversation!r} describe tools under {key!r}, and the model's chat template shows none; use a "
            "model whose template has tools"
        )
    return key


def conversation_source(table: Table, key: str, model: Abilities) -> dict[str, str]:
    """Returns the keys of a source whose conversations end with what is learnt.

    Raises `ConfigurationError` for calls of tools that the model cannot write, and for images.
    """
    if not model.calls and any(map(has_calls, table.values(key))):
        raise ConfigurationError(
            f"the conversations under {key!r} have calls of tools, and the model's chat template does not write them; use a "
            "model whose template has tools"
        )
    refuse_images(table)
    found = {"tools_field": tools_key(table, key, model), "system_field": system_key(table, key)}
    return {"prompt_field": key, **{name: value for name, value in found.items() if value is not None}}


def _with_system(table: Table, parts: PromptParts) -> PromptParts:
    key = system_key(table, parts.used[0])
    if key is None or key in parts.used:
        return parts
    texts = [f"{value_of(row, key) or ''}\n{text}" for row, text in zip(table.rows, parts.texts, strict=True)]
    return replace(parts, source={**parts.source, "system_field": key}, texts=texts, used=(*parts.used, key))


def _with_frame(parts: PromptParts, model: Abilities) -> PromptParts:
    """Returns the parts of prompts that are rendered already, if they are; refuses those of another model."""
    found = [match[1] for text in parts.texts if (match := _CONTROL.match(text)) is not None]
    if len(found) < MOST_OF * len(parts.texts):
        return parts
    if foreign := sorted(set(found) - set(model.frame)):
        raise ConfigurationError(
            f"the prompts are rendered for a model with the control token {foreign[0]!r}, which this model's chat template "
            "does not write; use the messages that they were made from, or the model that they were made for"
        )
    reason = f"the prompts have the control tokens of this model ({found[0]}), so no chat template is applied"
    source = {key: value for key, value in parts.source.items() if key != "system_field"}
    return replace(parts, source={**source, "rendered": True}, reasons=(*parts.reasons, reason))


def refuse_images(table: Table) -> None:
    """Raises `ConfigurationError` for rows with images that are to be learnt from."""
    if (key := image_key(table)) is not None:
        raise ConfigurationError(f"the rows have images under {key!r}; only rl with rewards can show images to a model")


def image_key(table: Table) -> str | None:
    """Returns the key of the rows' images; None if they have none."""
    return next((key for key in table.all(*IMAGE_KEYS) if table.values(key)), None)


def _with_media(table: Table, parts: PromptParts, model: Abilities) -> PromptParts:
    key = image_key(table)
    if key is None:
        return parts
    if not model.images:
        raise ConfigurationError(
            f"the prompts have images under {key!r}, and the model has no vision tower; use a vision-language model"
        )
    return replace(parts, source={**parts.source, "image_field": key}, used=(*parts.used, key))
