"""Reads the tests of a row for code: what a program gets on standard input and must print, or assert statements.

Consumes the value of a row's column. Produces the tests. Two formats are known, each also as JSON text:

- programs: a list of `{"input": ..., "output": ...}`, or `{"inputs": [...], "outputs": [...]}` (APPS, TACO);
- statements: a string, or a list of strings, each of which is executed after the code (MBPP).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STDIN_KINDS = ("stdin_stdout", "stdin")
EXPECTED = (
    'expected a list of {"input": TEXT, "output": TEXT}, {"inputs": [TEXT, ...], "outputs": [TEXT, ...]}, '
    "or assert statements as a string or a list of strings"
)


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """A test of a program: its standard input, and the output that is expected."""

    given: str
    expected: str


Case = ProgramCase | str
"""A test of a program, or statements that are executed after the code."""


def read_cases(value: Any) -> Sequence[Case]:
    """Returns the tests in a column; at least one. Raises `ValueError` with what is wrong for any other value."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}; {EXPECTED}") from None
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        value = _pairs(value)
    if not isinstance(value, Sequence) or not value:
        raise ValueError(f"is {'empty' if isinstance(value, Sequence) else type(value).__name__}; {EXPECTED}")
    cases = [_case(number, one) for number, one in enumerate(value)]
    if len({type(case) for case in cases}) > 1:
        raise ValueError("mixes programs' tests and statements; expected one of both")
    return cases


def _pairs(tests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns tests that are written as two lists as one list."""
    if tests.get("fn_name"):
        raise ValueError("has the key fn_name: calls of a function are not known; write them as assert statements")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"has the keys {', '.join(map(str, tests)) or 'of an empty object'}; {EXPECTED}")
    if len(inputs) != len(outputs):
        raise ValueError(f"has {len(inputs)} inputs and {len(outputs)} outputs; expected as many of both")
    return [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def _case(number: int, test: Any) -> Case:
    if isinstance(test, str):
        if not test.strip():
            raise ValueError(f"has no statement in test {number}")
        try:
            compile(test, "test", "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"has a test {number} that is not Python: {error}") from None
        return test
    if not isinstance(test, Mapping):
        raise ValueError(f"has a test {number} that is {type(test).__name__}; {EXPECTED}")
    kinds = [test[key] for key in ("type", "testtype") if test.get(key) is not None]
    if test.get("fn_name") or any(kind not in STDIN_KINDS for kind in kinds):
        raise ValueError(
            f"has a test {number} that calls a function; expected one of type stdin_stdout, or assert statements"
        )
    given, expected = _text(test.get("input")), _text(test.get("output"))
    if given is None or expected is None:
        raise ValueError(f"has a test {number} without the texts input and output; {EXPECTED}")
    return ProgramCase(given, expected)


def _text(value: Any) -> str | None:
    """Returns a text, which APPS sometimes splits into lines; None for any other value."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None
