"""Rows with a preferred and another response, or with one response and a label.

Consumes a table. Produces a `Recognised`, or None for other rows. Raises `ConfigurationError` for labels and responses in a
form that no objective learns from, and where a prompt would only be guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.starter.recognition.prompt_parts import (
    CONVERSATIONS,
    FEWEST,
    PROMPT_KEYS,
    conversation_source,
    prompt_parts,
    refuse_images,
    system_key,
    texts_differ,
    tools_key,
)
from ops.starter.recognition.recognised import KTO, PAIRS, Abilities, Recognised, RecognitionOptions
from ops.starter.recognition.table import (
    Table,
    ends_with,
    given_key,
    is_prompt,
    is_response,
    messages_in,
    type_name,
    value_of,
)
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.common_prefix import common_messages, common_text
from yatt_core.prompts.conversations import read_conversation, transcript
from yatt_core.prompts.dialogues import read_dialogue
from yatt_core.spec.sections.data import DialogueMarks

PREFERRED = ("chosen", "chosen_response", "preferred", "win")
OTHER = ("rejected", "rejected_response", "dispreferred", "lose")
RATINGS = (
    "kto_tag", "desirable", "is_desirable", "thumbs_up", "thumbs", "feedback", "liked", "is_correct", "correct",
    "accepted",
)  # fmt: skip
LABELS = ("label", *RATINGS)
RATED = (True, False, -1, "true", "false", "yes", "no", "good", "bad", "desirable", "undesirable", "chosen", "rejected")
"""What labels say of a response, in spellings that no objective reads but for true and false."""
COMPLETIONS = ("completion", "response", "output", "reply")
EARLIER = ("history", "context", "conversation", "trajectory", "document", "passage")
"""Keys of what a response answers, beside those of prompts."""
MARKS = DialogueMarks()
TRUTHS: tuple[Any, ...] = (True, False)


def pairs(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns rows with two responses each as preferences, with the prompt in a key or as what both begin with."""
    chosen = table.find(*PREFERRED)
    rejected = table.find(*OTHER)
    if chosen is None or rejected is None or not asked.allows(*PAIRS):
        return None
    for key in (chosen, rejected):
        _check_responses(table, key)
    refuse_images(table)
    responses = [value for key in (chosen, rejected) for value in table.values(key)]
    parts = prompt_parts(table, asked, model)
    source: dict[str, Any] = dict(parts.source) if parts else {"prompt_field": None}
    used = [*(parts.used if parts else ()), chosen, rejected]
    texts = [*(parts.texts if parts else ()), *(value for value in responses if messages_in(value) is None)]
    if any(MARKS.user in text for text in texts):
        source["dialogue"] = MARKS.model_dump()
    conversations = table.mostly(chosen, ends_with("assistant"))
    what = "messages" if conversations else "dialogues" if "dialogue" in source else "texts"
    if parts is None:
        _check_prefixes(table, chosen, rejected, what)
        if (system := system_key(table, chosen)) is not None:
            source["system_field"] = system
            used.append(system)
    if (tools := tools_key(table, chosen, model)) is not None:
        source["tools_field"] = tools
        used.append(tools)
    where = f"prompts in {parts.used[0]!r}" if parts else f"the prompt is what both {what} begin with"
    return Recognised(
        shape=f"preferences: {where}, responses in {chosen!r} and {rejected!r}",
        objective=asked.objective or PAIRS[0],
        source={**source, "chosen_field": chosen, "rejected_field": rejected},
        used=tuple(used),
        reasons=(*(parts.reasons if parts else ()), *_unread(table, used)),
    )


def labelled(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns rows with a response and a label each as unpaired preferences."""
    if not asked.allows(KTO):
        return None
    label = table.find(*LABELS)
    completion = asked.answer_field or table.find(*COMPLETIONS)
    if label is None or label == completion:
        return None
    if completion is None:
        return _labelled_conversations(table, asked, model, label)
    completion = given_key(table, completion, "--answer-field")
    if not all(map(is_response, table.values(completion))):
        return None
    values = [value_of(row, label) for row in table.rows]
    wrong = [value for value in values if value not in TRUTHS]
    if wrong:
        raise ConfigurationError(
            f"the rows have a response under {completion!r} and a label under {label!r} that is {wrong[0]!r}; expected true "
            "or false (or 1 or 0) in each row: true for a response that is desirable (--objective sft learns all of them)"
        )
    parts = prompt_parts(table, asked, model, [key for key in PROMPT_KEYS if key != completion])
    if parts is None:
        return None
    refuse_images(table)
    source = {**parts.source, "answer_field": completion, "label_field": label}
    used = [*parts.used, completion, label]
    if (tools := tools_key(table, completion, model)) is not None:
        source["tools_field"] = tools
        used.append(tools)
    return Recognised(
        shape=f"unpaired preferences: prompts in {parts.used[0]!r}, responses in {completion!r}, labels in {label!r}",
        objective=KTO,
        source=source,
        used=tuple(used),
        reasons=parts.reasons,
    )


def _labelled_conversations(table: Table, asked: RecognitionOptions, model: Abilities, label: str) -> Recognised | None:
    """Returns conversations that end with the assistant's message, which a label rates; None if no label rates them.

    Raises `ConfigurationError` if they have several turns of the assistant, since the label may be of the last one alone.
    """
    keys = (asked.prompt_field,) if asked.prompt_field else CONVERSATIONS
    key = next((key for key in table.all(*keys) if table.mostly(key, ends_with("assistant"))), None)
    if key is None:
        return None
    values = [value_of(row, label) for row in table.rows]
    if any(value not in TRUTHS for value in values):
        rates = label in table.all(*RATINGS) or all(value is None or _is_rating(value) for value in values)
        if not rates:
            return None
        wrong = next(value for value in values if value not in TRUTHS)
        raise ConfigurationError(
            f"the rows have conversations under {key!r} and a label under {label!r} that is {wrong!r}; expected true or "
            "false (or 1 or 0) in each row: true for a response that is desirable (--objective sft learns all of them)"
        )
    several = [len(_turns(value_of(row, key))) > 1 for row in table.rows]
    if any(several):
        raise ConfigurationError(
            f"row {several.index(True) + 1}: the conversation under {key!r} has several turns of the assistant, and it is "
            f"not clear which of them {label!r} is about; expected 'prompt' with the turns before the response, 'completion' "
            "and 'label' (--objective sft learns all of them)"
        )
    source = {**conversation_source(table, key, model), "label_field": label}
    return Recognised(
        shape=f"unpaired preferences: conversations in {key!r}, of which the response is rated, labels in {label!r}",
        objective=KTO,
        source=source,
        used=tuple(source.values()),
    )


def _turns(conversation: Any) -> list[str]:
    return [role for role, _ in messages_in(conversation) or () if role == "assistant"]


def _is_rating(value: Any) -> bool:
    return (value.strip().lower() if isinstance(value, str) else value) in RATED


def _check_responses(table: Table, key: str) -> None:
    """Raises `ConfigurationError` if a response is neither text nor a conversation that ends with the assistant's message."""
    for number, row in enumerate(table.rows, start=1):
        value = value_of(row, key)
        if not is_response(value):
            raise ConfigurationError(
                f"row {number}: {key!r} is {_seen(value)}; expected a text, or a list of messages that ends with the "
                "assistant's"
            )


def _seen(value: Any) -> str:
    """Returns what a value is that is no response, in words."""
    if value is None or not str(value).strip():
        return "null" if value is None else "empty"
    if isinstance(value, Mapping) and messages_in([value]) is not None:
        return "one message that is in no list"
    messages = messages_in(value)
    return type_name(value) if messages is None else f"a list of messages that ends with one of {messages[-1][0]!r}"


def _check_prefixes(table: Table, chosen: str, rejected: str, what: str) -> None:
    """Raises `ConfigurationError` if what two responses begin with is no prompt, as a run would find it.

    Texts often begin with the same words by chance. Then these words are the same in many rows, or the prompt is under some
    other key.
    """
    unread = [key for key in table.keys if key not in (chosen, rejected, system_key(table, chosen))]
    plain = what == "texts"
    for key in unread:
        is_earlier = key.strip().lower() in EARLIER and bool(table.values(key))
        if is_earlier or (table.mostly(key, is_prompt) and texts_differ(table, key) and plain):
            raise ConfigurationError(
                f"it is not clear whether the prompt is what {chosen!r} and {rejected!r} begin with, or under {key!r}; name "
                f"the prompt with --prompt-field, or leave {key!r} out"
            )
    prefixes = list(_prefixes(table, chosen, rejected, what))
    most = Counter(prefixes).most_common(1)[0][1]
    fewest = len(prefixes) / 2
    if len(prefixes) >= FEWEST and (most > fewest or (plain and len(set(prefixes)) < fewest)):
        raise ConfigurationError(
            f"no key looks like a prompt, and {chosen!r} and {rejected!r} begin with the same words in many rows "
            f"({prefixes[0]!r:.60}), which are no prompt; name the prompt with --prompt-field (the keys: "
            f"{table.described()})"
        )


def _prefixes(table: Table, chosen: str, rejected: str, what: str) -> Iterator[str]:
    """Yields what both responses of each row begin with."""
    for number, row in enumerate(table.rows, start=1):
        one = value_of(row, chosen)
        other = value_of(row, rejected)
        try:
            if what == "texts":
                yield one[: common_text(one, other)]
                continue
            read = read_conversation if what == "messages" else _dialogue
            first = read(one)
            yield transcript(first[: common_messages(first, read(other))])
        except (DataError, TypeError) as error:
            raise ConfigurationError(
                f"row {number}: no key looks like a prompt, and {chosen!r} and {rejected!r}: {error}; name the prompt with "
                f"--prompt-field (the keys: {table.described()})"
            ) from None


def _dialogue(text: str) -> Any:
    return read_dialogue(text, MARKS)


def _unread(table: Table, used: Sequence[str]) -> list[str]:
    """Returns what to say of margins and scores, which no objective reads."""
    words = ("score", "margin", "rating", "rank", "strength")
    found = [key for key in table.keys if key not in used and any(word in key.lower() for word in words)]
    return [f"no objective reads {', '.join(map(repr, found))}: each pair counts the same"] if found else []
