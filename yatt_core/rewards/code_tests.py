"""The reward for code that passes the tests of its row, an entry point of the group `yatt.rewards`.

Consumes a prompt whose row has tests, and a response with code. Produces the fraction of the tests that the code passes,
or whether it passes all of them. Each test runs in a fresh interpreter (`sandboxed_program`).
"""

from __future__ import annotations

import functools
import json
import math
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from yatt_core.errors import InfrastructureError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards import code_harness
from yatt_core.rewards.code_cases import CallCase, Case, CaseKeys, ProgramCase, RowTests, row_tests
from yatt_core.rewards.conventions import Unasked
from yatt_core.rewards.extraction import final_of
from yatt_core.rewards.options import built_in
from yatt_core.rewards.sandboxed_program import MAIN, ProgramLimits, run_program

LABELS = ("python", "python3", "py")
FENCE = "```"
_OPENING = re.compile(r"(?P<indent>\s*)(?P<fence>`{3,})\s*(?P<label>[^\s`]*)[^`]*")
HARNESS = Path(code_harness.__file__).read_text(encoding="utf-8")
CLOSE = 1e-6
"""Relative and absolute difference of equal numbers if one of them has a fraction."""


class CodeTests(CaseKeys):
    """Options of `code_tests`, besides the columns of the tests.

    partial: score the fraction of the tests passed; otherwise 1 for all of them and 0 for less.
    extract: `fence` takes the last fenced block labelled as Python, or the last one without a label if there is none. With
        a prefix, a response without any fence is code.
    with_thoughts: whether the code may be in the thoughts; otherwise only the final text is read.
    cpu_seconds, wall_seconds, memory_mib, output_kib: limits of each test.
    isolation: `limits` also runs where the kernel refuses namespaces; code then reaches network, files and processes.
    """

    partial: bool = False
    extract: Literal["fence", "whole"] = "fence"
    with_thoughts: bool = False
    cpu_seconds: PositiveInt = Field(default=5, le=3600)
    wall_seconds: PositiveFloat = Field(default=60.0, le=86_400.0)
    memory_mib: PositiveInt = Field(default=1024, ge=64)
    output_kib: PositiveInt = Field(default=1024, le=8192)
    isolation: Literal["namespaces", "limits"] = "namespaces"

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.wall_seconds <= self.cpu_seconds:
            raise ValueError(f"wall_seconds {self.wall_seconds:g} is not above cpu_seconds {self.cpu_seconds}")
        return self

    @model_validator(mode="after")
    def _possible_here(self) -> Self:
        if refusal := _refusal(self.isolation == "namespaces"):
            allowed = "isolation: limits runs code with access to network, files and processes"
            raise ValueError(f"{refusal}{f'; {allowed}' if self.isolation == 'namespaces' else ''}")
        return self

    @property
    def limits(self) -> ProgramLimits:
        """The limits of a test."""
        return ProgramLimits(
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            memory_bytes=self.memory_mib << 20,
            output_bytes=self.output_kib << 10,
            namespaces=self.isolation == "namespaces",
        )


@built_in(CodeTests, blames_response=True)
def code_tests(prompt: Prompt, response: str, options: CodeTests, final: str | None = None) -> float:
    """Returns the fraction of the row's tests that the response's code passes; without `partial`, 1 or 0.

    Raises `DataError` for a row without usable tests, and `InfrastructureError` if the system cannot start a program.
    """
    tests = row_tests(prompt, options)
    if not options.with_thoughts:
        response = final_of(response, final)
    is_code = options.extract == "whole" or (tests.prefix and FENCE not in response)
    code = response if is_code else fenced(response)
    if code is None or not code.strip():
        return Unasked(0.0)
    passed = 0
    for case in tests.cases:
        if passes(code, case, tests, options.limits):
            passed += 1
        elif not options.partial:
            return 0.0
    return passed / len(tests.cases)


@built_in(CodeTests, blames_response=True)
def check_rows(prompts: Sequence[Prompt], responses: Sequence[str], options: CodeTests) -> list[float]:
    """Returns for each row 1 if an empty program passes all of its tests, which then test nothing, else 0.

    Statements of all rows are executed in one program if they let it end. Raises as `code_tests` does.
    """
    rows = [row_tests(prompt, options) for prompt in prompts]
    together = [number for number, tests in enumerate(rows) if all(isinstance(case, str) for case in tests.cases)]
    tasks = [
        [_task("", case, rows[number]) for case in rows[number].cases if isinstance(case, str)] for number in together
    ]
    token = secrets.token_bytes(32)
    ended = run_program({MAIN: HARNESS, code_harness.TASK: json.dumps({"rows": tasks})}, token, options.limits)
    _, found, answer = ended.output.rpartition(token)
    known = dict[int, bool]()
    if ended.succeeded and found:
        passing = json.loads(answer)
        known = {number: place in passing for place, number in enumerate(together)}
    return [
        float(
            known[number] if number in known else all(passes("", case, tests, options.limits) for case in tests.cases)
        )
        for number, tests in enumerate(rows)
    ]


def passes(code: str, case: Case, tests: RowTests, limits: ProgramLimits) -> bool:
    """Returns whether code passes a test of a row within the limits."""
    if isinstance(case, ProgramCase):
        program = "\n".join(text for text in (tests.setup, tests.prefix, code) if text)
        ended = run_program({MAIN: program}, case.given.encode("utf-8", "replace"), limits)
        return ended.succeeded and same_output(ended.output.decode("utf-8", "replace"), case)
    token = secrets.token_bytes(32)
    ended = run_program({MAIN: HARNESS, code_harness.TASK: json.dumps(_task(code, case, tests))}, token, limits)
    _, found, answer = ended.output.rpartition(token)
    if not ended.succeeded or not found:
        return False
    return any(_same_value(answer, one) for one in case.expected) if isinstance(case, CallCase) else not answer


def _task(code: str, case: CallCase | str, tests: RowTests) -> dict[str, Any]:
    """Returns what the harness executes for a test."""
    called = {"name": case.name, "arguments": case.arguments} if isinstance(case, CallCase) else {"statements": case}
    return {"setup": tests.setup, "prefix": tests.prefix, "code": code, **called}


def same_output(output: str, case: ProgramCase) -> bool:
    """Returns whether a program has printed what is expected: without white space around lines, and empty lines around all."""
    return _lines(output) == _lines(case.expected)


def _same_value(answer: bytes, expected: Any) -> bool:
    """Returns whether JSON text that code wrote is an expected value."""
    try:
        return _is_value(json.loads(answer), expected)
    except (ValueError, RecursionError):
        return False


def _is_value(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        same_size = isinstance(found, list) and len(found) == len(expected)
        return same_size and all(_is_value(one, other) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, dict):
        same_keys = isinstance(found, dict) and found.keys() == expected.keys()
        return same_keys and all(_is_value(found[key], value) for key, value in expected.items())
    numbers = [value for value in (found, expected) if isinstance(value, int | float)]
    if len(numbers) == 2 and any(isinstance(value, float) for value in numbers):
        return math.isclose(found, expected, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(found == expected)


def fenced(text: str) -> str | None:
    """Returns the contents of the last complete block that is labelled as Python, or else of the last unlabelled one.

    As in Markdown, a label is the first word behind the fence, a fence ends with at least as many marks as it begins with, and
    the lines lose the white space before the fence, in a list for example, but no more.
    """
    found: dict[bool, str] = {}
    opening: re.Match[str] | None = None
    block = list[str]()
    for line in text.splitlines():
        mark = line.strip()
        if opening is None:
            opening = _OPENING.fullmatch(line)
            block = []
        elif len(mark) >= len(opening["fence"]) and not mark.strip("`"):
            label = opening["label"].lower()
            if label in LABELS or not label:
                found[label in LABELS] = _shifted(block, len(opening["indent"]))
            opening = None
        else:
            block.append(line)
    return found.get(True, found.get(False))


def _shifted(lines: Sequence[str], most: int) -> str:
    """Returns lines without the white space that all of them begin with, up to so many characters."""
    common = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[min(common, most) :] for line in lines)


def _lines(text: str) -> list[str]:
    """Returns the lines of an output without white space around them, and without empty lines around them all."""
    return [line.strip() for line in text.strip().splitlines()]


@functools.cache
def _refusal(namespaces: bool) -> str:
    """Returns why this system cannot run programs; empty if it can."""
    limits = ProgramLimits(
        cpu_seconds=10, wall_seconds=60.0, memory_bytes=1 << 30, output_bytes=1 << 10, namespaces=namespaces
    )
    try:
        ended = run_program({MAIN: "print(1)"}, b"", limits)
    except InfrastructureError as error:
        return str(error)
    return "" if ended.succeeded else "a program that only prints a number has failed"
