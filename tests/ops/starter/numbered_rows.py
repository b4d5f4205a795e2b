"""Rows whose texts differ, as those of a data set do, and what they mean or why they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.recognition.recognised import Abilities, Recognised, RecognitionOptions
from ops.starter.recognition.shapes import recognise
from yatt_core.errors import ConfigurationError

MODEL = Abilities(images=True, tools=True, calls=True, system=True, frame=("<|im_start|>", "<|im_end|>"))
NOTHING = RecognitionOptions()
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
Rows = list[dict[str, Any]]


def many(**row: Any) -> Rows:
    """Returns twelve rows, in which each § is the row's number as a word; the values of a tuple take turns."""
    return [{key: numbered(value, number) for key, value in row.items()} for number in range(12)]


def numbered(value: Any, number: int) -> Any:
    if isinstance(value, tuple):
        return numbered(value[number % len(value)], number)
    if isinstance(value, str):
        return value.replace("§", f"knot {WORDS[number]}")
    if isinstance(value, dict):
        return {key: numbered(each, number) for key, each in value.items()}
    return [numbered(each, number) for each in value] if isinstance(value, list) else value


def meaning(rows: Rows, asked: RecognitionOptions = NOTHING, model: Abilities = MODEL) -> Recognised:
    return recognise(rows, asked, model)


def refusal(rows: Rows, asked: RecognitionOptions = NOTHING, model: Abilities = MODEL) -> str:
    with pytest.raises(ConfigurationError) as error:
        recognise(rows, asked, model)
    return str(error.value)
