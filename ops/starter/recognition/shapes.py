"""The shapes of rows that are known, in the order in which they are tried, and what is missing where none fits.

Consumes the first rows of a data set, the options of the command, and what the model can do. Produces a `Recognised`. Raises
`ConfigurationError`: for a shape that no run learns from, for rows that mean two things, and for rows of no known shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ops.starter.recognition import refused
from ops.starter.recognition.answer_keys import unread_answers
from ops.starter.recognition.demonstrations import alpaca, completions, conversations, plain_text
from ops.starter.recognition.preferences import labelled, pairs
from ops.starter.recognition.programs import programs
from ops.starter.recognition.recognised import (
    KTO,
    PAIRS,
    RL,
    SFT,
    Abilities,
    ObjectiveKind,
    Recognised,
    RecognitionOptions,
)
from ops.starter.recognition.table import Table
from ops.starter.recognition.thoughts import FORM, thoughts_key
from ops.starter.recognition.verifiable import verifiable
from yatt_core.errors import ConfigurationError
from yatt_core.json_text import object_in

Reader = Callable[[Table, RecognitionOptions, Abilities], Recognised | None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A form of rows.

    needs: what it needs, each with the usual keys; for the message about rows of no known shape.
    read: returns what the rows mean; None if they have another form.
    objectives: what can be learnt from it.
    """

    name: str
    needs: Mapping[str, Sequence[str]]
    read: Reader
    objectives: tuple[ObjectiveKind, ...]


PROMPT = ("prompt", "question", "problem", "query", "instruction")
REFUSED: tuple[Callable[[Table, RecognitionOptions], None], ...] = (
    refused.tokens,
    refused.speakers,
    refused.weights,
    refused.equations,
    refused.tree,
    refused.process_labels,
    refused.ranked,
    refused.half_pairs,
    refused.repositories,
    refused.scored,
    refused.calls,
    refused.distractors,
)
SHAPES = (
    Shape("preferences", {"the preferred response": ("chosen",), "the other response": ("rejected",)}, pairs, PAIRS),
    Shape("unpaired preferences", {"a response": ("completion", "response"), "a label": ("label",)}, labelled, (KTO,)),
    Shape("tasks for programs", {"a task": PROMPT, "tests": ("tests", "input_output", "test_list")}, programs, (RL,)),
    Shape(
        "conversations",
        {"messages that end with the assistant's": ("messages", "conversations")},
        conversations,
        (SFT,),
    ),
    Shape("instructions", {"an instruction": ("instruction",), "an output": ("output",)}, alpaca, (SFT,)),
    Shape(
        "prompts with answers",
        {"a prompt": PROMPT, "an answer": ("answer", "ground_truth", "solution")},
        verifiable,
        (RL,),
    ),
    Shape(
        "prompts with completions",
        {"a prompt": PROMPT, "a completion": ("completion", "response")},
        completions,
        (SFT,),
    ),
    Shape("plain text", {"a text": ("text",)}, plain_text, (SFT,)),
)
"""Preferences before everything, as they have prompts and responses too; Alpaca before answers to compare."""
RIVALS = (conversations, completions)
"""Demonstrations that rows with answers to compare may be as well: the rows alone do not decide."""


def recognise(rows: Sequence[Mapping[str, Any]], asked: RecognitionOptions, model: Abilities) -> Recognised:
    """Returns what rows mean; at least one row."""
    table = Table(rows)
    for refuse in REFUSED:
        refuse(table, asked)
    for shape in SHAPES:
        found = shape.read(table, asked, model)
        if found is not None:
            _refuse_ambiguous(table=table, asked=asked, model=model, read=shape.read, found=found)
            return replace(found, unused=_unused(table, found))
    raise ConfigurationError(_unknown(table, asked))


def _refuse_ambiguous(
    table: Table, asked: RecognitionOptions, model: Abilities, read: Reader, found: Recognised
) -> None:
    """Raises `ConfigurationError` for rows that have answers to compare as well as responses to learn."""
    if asked.objective is not None or asked.own_reward:
        return
    if read in RIVALS:
        try:
            other = verifiable(table, asked, model)
        except ConfigurationError:
            return
        _refuse_both(other, found)
    elif read is verifiable:
        _refuse_thoughts(table, found)
        for rival in RIVALS:
            _refuse_both(found, rival(table, asked, model))


def _refuse_thoughts(table: Table, found: Recognised) -> None:
    """Raises `ConfigurationError` for answers to compare beside thoughts, which are there to be learnt."""
    answers = found.source["answer_field"]
    key = thoughts_key(table, answers)
    if key is not None:
        raise ConfigurationError(
            f"the rows mean two things: {found.shape}, and thoughts under {key!r} to learn; add --objective {RL} for the "
            f"first; for the second, expected {FORM} (--objective {SFT} --answer-field {answers} learns the answers without "
            "thoughts)"
        )


def _refuse_both(answers: Recognised | None, learnt: Recognised | None) -> None:
    if answers is None or learnt is None or answers.reward is None:
        return
    same = answers.source["answer_field"] == learnt.source.get("answer_field")
    if same or answers.reward.options.get("extract_reference") == "boxed":
        return  # the answer is part of a solution, which is a demonstration itself
    raise ConfigurationError(
        f"the rows mean two things: {answers.shape}, and {learnt.shape}; add --objective {RL} for the first, or --objective "
        f"{learnt.objective} for the second"
    )


def _unused(table: Table, found: Recognised) -> tuple[str, ...]:
    """Returns the keys that are not read; within an object of which a key is read, its other keys."""
    unused = list[str]()
    for key in table.keys:
        if key in found.used:
            continue
        within = [used for used in found.used if used.startswith(f"{key}.")]
        if not within:
            unused.append(key)
            continue
        parts = {part: None for value in table.values(key) for part in object_in(value) or ()}
        unused += [f"{key}.{part}" for part in parts if not any(_within(used, f"{key}.{part}") for used in within)]
    return tuple(unused)


def _within(used: str, key: str) -> bool:
    return used == key or used.startswith(f"{key}.")


def _unknown(table: Table, asked: RecognitionOptions) -> str:
    """Returns what the rows have, and what is missing for the shape that is nearest."""
    wanted = "" if asked.objective is None else f" for --objective {asked.objective}"

    def missing(shape: Shape) -> list[str]:
        return [what for what, keys in shape.needs.items() if table.find(*keys) is None]

    if asked.allows(RL) and (seen := unread_answers(table)):
        return f"the rows have no shape that is known{wanted}: {table.described()}; {seen}"
    possible = [shape for shape in SHAPES if asked.allows(*shape.objectives)]
    nearest = min(possible, key=lambda shape: (len(missing(shape)) / len(shape.needs), len(missing(shape))))
    lacks = missing(nearest)
    what = " and ".join(f"{need} ({' or '.join(nearest.needs[need])})" for need in lacks)
    advice = (
        f"for {nearest.name}, the nearest, {what} is missing"
        if lacks
        else f"{nearest.name}, the nearest, have other values"
    )
    return (
        f"the rows have no shape that is known{wanted}: {table.described()}; {advice}; name keys with --prompt-field and "
        "--answer-field"
    )
