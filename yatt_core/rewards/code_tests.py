"""The reward for code that passes the tests of its row, an entry point of the group `yatt.rewards`.

Consumes a prompt whose row has tests, and a response with code. Produces the fraction of the tests that the code passes,
or whether it passes all of them. Each test runs in a fresh interpreter (`sandboxed_program`).
"""

from __future__ import annotations

import functools
import secrets
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from yatt_core.errors import DataError, InfrastructureError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.code_cases import Case, ProgramCase, read_cases
from yatt_core.rewards.options import Options, built_in
from yatt_core.rewards.sandboxed_program import MAIN, ProgramLimits, run_program

LABELS = ("```python", "```python3", "```py")
FENCE = "```"
SOLUTION, STATEMENTS = "solution.py", "statements.py"
# The token is read before the code runs and written after the statements: leaving early is not passing.
ASSERTING = f"""\
import os, sys, types

def run(write=os.write, leave=os._exit):
    token = os.read(0, 64)
    module = sys.modules["solution"] = types.ModuleType("solution")
    for name in ({SOLUTION!r}, {STATEMENTS!r}):
        with open(name, encoding="utf-8") as file:
            exec(compile(file.read(), name, "exec"), module.__dict__)
    sys.stdout.flush()
    write(1, token)
    leave(0)

run()
"""


class CodeTests(Options):
    """Options of `code_tests`.

    tests: the column of the row that has the tests.
    partial: score the fraction of the tests passed; otherwise 1 for all of them and 0 for less.
    extract: `fence` takes the last fenced block labelled as Python, or the last one without a label if there is none.
    cpu_seconds, wall_seconds, memory_mib, output_kib: limits of each test.
    isolation: `limits` also runs where the kernel refuses namespaces; code then reaches network, files and processes.
    """

    tests: str = "tests"
    partial: bool = False
    extract: Literal["fence", "whole"] = "fence"
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
def code_tests(prompt: Prompt, response: str, options: CodeTests) -> float:
    """Returns the fraction of the row's tests that the response's code passes; without `partial`, 1 or 0.

    Raises `DataError` for a row without usable tests, and `InfrastructureError` if the system cannot start a program.
    """
    cases = _cases(prompt, options.tests)
    code = response if options.extract == "whole" else fenced(response)
    if code is None or not code.strip():
        return 0.0
    passed = 0
    for case in cases:
        if passes(code, case, options.limits):
            passed += 1
        elif not options.partial:
            return 0.0
    return passed / len(cases)


def passes(code: str, case: Case, limits: ProgramLimits) -> bool:
    """Returns whether code passes a test within the limits."""
    if isinstance(case, ProgramCase):
        ended = run_program({MAIN: code}, case.given.encode("utf-8", "replace"), limits)
        return ended.succeeded and _lines(ended.output.decode("utf-8", "replace")) == _lines(case.expected)
    token = secrets.token_bytes(32)
    ended = run_program({MAIN: ASSERTING, SOLUTION: code, STATEMENTS: case}, token, limits)
    return ended.succeeded and ended.output.endswith(token)


def fenced(text: str) -> str | None:
    """Returns the contents of the last complete block that is labelled as Python, or else of the last unlabelled one."""
    found: dict[bool, str] = {}
    label, block = "", list[str]()
    for line in text.splitlines():
        mark = line.strip()
        if not label:
            label = mark.lower() if mark.startswith(FENCE) else ""
            block = []
        elif mark == FENCE:
            if label in LABELS or label == FENCE:
                found[label in LABELS] = "\n".join(block)
            label = ""
        else:
            block.append(line)
    return found.get(True, found.get(False))


def _cases(prompt: Prompt, column: str) -> list[Case]:
    where = f"row {prompt.prompt_id}: column {column!r}"
    if column not in prompt.entry:
        raise DataError(f"{where} is missing; the row has {', '.join(map(repr, prompt.entry)) or 'no columns'}")
    try:
        return list(read_cases(prompt.entry[column]))
    except ValueError as error:
        raise DataError(f"{where} {error}") from None


def _lines(text: str) -> list[str]:
    """Returns the lines of an output without white space around them, and without empty lines around them all."""
    return [line.strip() for line in text.strip().splitlines()]


@functools.cache
def _refusal(namespaces: bool) -> str:
    """Returns why this system cannot run programs; empty if it can."""
    limits = ProgramLimits(10, 60.0, 1 << 30, 1 << 10, namespaces)
    try:
        ended = run_program({MAIN: "print(1)"}, b"", limits)
    except InfrastructureError as error:
        return str(error)
    return "" if ended.succeeded else "a program that only prints a number has failed"
