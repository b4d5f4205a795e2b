"""Reads the tests of a row for code: what a program has to print, what a function has to return, or assert statements.

Consumes a row and the keys of its columns. Produces the tests. Three kinds are known, each also as JSON text:

- programs: a list of `{"input": ..., "output": ...}`, or `{"inputs": [...], "outputs": [...]}` (APPS, TACO, DeepCoder);
- calls: the same with `fn_name`, `metadata.func_name` or a column with the function's name; an input is a list of
  arguments, or a text with one JSON value on each line (LiveCodeBench);
- statements: a string, or a list of strings, each of which is executed after the code (MBPP); a text that defines
  `check(candidate)` is called with the function that a column names (HumanEval).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yatt_core.errors import DataError
from yatt_core.prompts.keys import MISSING, value_at
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.options import Options

STDIN_KINDS = ("stdin_stdout", "stdin")
CALL_KINDS = ("functional", "function_call", "call_based")
NESTED_TEXTS = 3
"""Maximum number of times that JSON text may be the text of JSON."""
CHECK = "check"
"""The function of HumanEval's tests that takes the function under test."""
IDLE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.Pass,
)
"""Statements that test nothing by themselves."""
EXPECTED = (
    'expected a list of {"input": TEXT, "output": TEXT}, {"inputs": [TEXT, ...], "outputs": [TEXT, ...]}, '
    "or assert statements as a string or a list of strings"
)


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """A test of a program: its standard input, and the output that is expected."""

    given: str
    expected: str


@dataclass(frozen=True, slots=True)
class CallCase:
    """A test of a function.

    name: the function, or the method of the class `Solution`.
    expected: JSON values, each of which is right.
    """

    name: str
    arguments: Sequence[Any]
    expected: Sequence[Any]


Case = ProgramCase | CallCase | str
"""A test of a program, of a function, or statements that are executed after the code."""


class CaseKeys(Options):
    """The columns of a row that have tests; each key may lead into objects, as `extra_info.tests` does.

    tests: the tests.
    entry_point: the name of the function under test; tests may name it themselves.
    setup: code that runs before a response's code and the tests.
    prefix: code that the response continues.
    """

    tests: str = "tests"
    entry_point: str | None = None
    setup: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class RowTests:
    """The tests of a row; setup and prefix are empty if it has none."""

    cases: Sequence[Case]
    setup: str
    prefix: str


def row_tests(prompt: Prompt, keys: CaseKeys) -> RowTests:
    """Returns the tests of a prompt's row. Raises `DataError` if it has none, or other values than expected."""
    entry_point = _text_at(prompt, keys.entry_point)
    where, value = _value_at(prompt, keys.tests)
    try:
        cases = read_cases(value, entry_point)
    except ValueError as error:
        raise DataError(f"{where} {error}") from None
    return RowTests(cases, _text_at(prompt, keys.setup), _text_at(prompt, keys.prefix))


def read_cases(value: Any, entry_point: str = "") -> Sequence[Case]:
    """Returns the tests in a column; at least one. Raises `ValueError` with what is wrong for any other value.

    entry_point: the function under test, unless the tests name one; empty if it is unknown.
    """
    value = _without_json(value)
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        value = _pairs(value)
    if not isinstance(value, Sequence) or not value:
        raise ValueError(f"is {'empty' if isinstance(value, Sequence) else type(value).__name__}; {EXPECTED}")
    cases = [_case(number, one, entry_point) for number, one in enumerate(value)]
    if len({isinstance(case, str) for case in cases}) > 1:
        raise ValueError("mixes programs' tests and statements; expected one of both")
    return _unwrapped(cases)


def _value_at(prompt: Prompt, key: str) -> tuple[str, Any]:
    """Returns the place of a value, for messages, and the value. Raises `DataError` if there is none."""
    where = f"row {prompt.prompt_id}: column {key!r}"
    value = value_at(prompt.entry, key, MISSING)
    if value is MISSING:
        raise DataError(f"{where} is missing; the row has {', '.join(map(repr, prompt.entry)) or 'no columns'}")
    return where, value


def _text_at(prompt: Prompt, key: str | None) -> str:
    """Returns the text under a key, where lists are lines. Raises `DataError` for another value, and if there is none."""
    if key is None:
        return ""
    where, value = _value_at(prompt, key)
    text = "" if value is None else _text(value)
    if text is None:
        raise DataError(f"{where} is {type(value).__name__}; expected text, or a list of lines")
    return text


def _without_json(value: Any) -> Any:
    """Returns the value of JSON text, which may be the text of further JSON; any other value as it is."""
    for _ in range(NESTED_TEXTS):
        if not isinstance(value, str) or not value.lstrip().startswith(("[", "{", '"')):
            break
        try:
            value = json.loads(value)
        except ValueError as error:
            if value.lstrip().startswith('"'):
                break
            raise ValueError(f"is not JSON: {error}; {EXPECTED}") from None
    return value


def _pairs(tests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns tests that are written as two lists, or a single test, as one list."""
    if isinstance(tests.get("input"), str):
        return [dict(tests)]
    inputs, outputs = (tests.get(plural, tests.get(plural.removesuffix("s"))) for plural in ("inputs", "outputs"))
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"has the keys {', '.join(map(str, tests)) or 'of an empty object'}; {EXPECTED}")
    if len(inputs) != len(outputs):
        raise ValueError(f"has {len(inputs)} inputs and {len(outputs)} outputs; expected as many of both")
    shared = {"fn_name": tests.get("fn_name")}
    return [{**shared, "input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def _case(number: int, test: Any, entry_point: str) -> Case:
    if isinstance(test, str) and test.lstrip().startswith("{"):
        test = _without_json(test)
    if isinstance(test, str):
        return _statements(number, test, entry_point)
    if not isinstance(test, Mapping):
        raise ValueError(f"has a test {number} that is {type(test).__name__}; {EXPECTED}")
    kinds = [test[key] for key in ("type", "testtype") if test.get(key) is not None]
    if unknown := [kind for kind in kinds if kind not in (*STDIN_KINDS, *CALL_KINDS)]:
        raise ValueError(
            f"has a test {number} of the type {unknown[0]}; expected one of {', '.join((*STDIN_KINDS, *CALL_KINDS))}"
        )
    name = _function_of(test) or entry_point
    if "input" not in test or "output" not in test:
        raise ValueError(f"has a test {number} without the texts input and output; {EXPECTED}")
    if any(kind in CALL_KINDS for kind in kinds) or (name and not kinds):
        return _call(number, test["input"], test["output"], name)
    given = _text(test["input"])
    expected = _text(test["output"])
    if given is None or expected is None:
        raise ValueError(f"has a test {number} without the texts input and output; {EXPECTED}")
    return ProgramCase(given, expected)


def _statements(number: int, test: str, entry_point: str) -> str:
    """Returns statements that test something, with the call of `check` that they need."""
    try:
        compile(test, "test", "exec")
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"has a test {number} that is not Python: {error}") from None
    acting = [node for node in body if not isinstance(node, IDLE) and not _is_text(node)]
    defined = any(isinstance(node, ast.FunctionDef) and node.name == CHECK for node in body)
    if defined and not any(_names(node, CHECK) for node in acting):
        if not entry_point:
            raise ValueError(
                f"has a test {number} that defines {CHECK} and does not call it; expected the option entry_point: the "
                "column with the name of the function under test"
            )
        return f"{test}\n\n{CHECK}({_expression(entry_point)})\n"
    if not acting:
        raise ValueError(f"has no statement in test {number} that tests something; expected assert statements")
    return test


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names(node: ast.stmt, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _expression(entry_point: str) -> str:
    """Returns the name of a function, such as `f` or `Solution().f`. Raises `ValueError` for other text."""
    try:
        ast.parse(entry_point.strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"cannot call {entry_point!r:.100}, which is not the name of a function: {error}") from None
    return entry_point.strip()


def _function_of(test: Mapping[str, Any]) -> str:
    """Returns the name of the function that a test calls; empty if it names none."""
    metadata = test.get("metadata")
    if isinstance(metadata, str):
        metadata = _without_json(metadata)
    inside = metadata if isinstance(metadata, Mapping) else {}
    found = test.get("fn_name") or test.get("func_name") or inside.get("func_name") or inside.get("fn_name")
    return found if isinstance(found, str) else ""


def _call(number: int, given: Any, expected: Any, name: str) -> CallCase:
    name = name.strip().rpartition(".")[2]
    if not name.isidentifier():
        raise ValueError(
            f"has a test {number} that calls a function without naming it; expected fn_name, metadata.func_name, or the "
            "option entry_point: the column with its name"
        )
    if not isinstance(given, str):
        return CallCase(name, given if isinstance(given, list) else [given], [expected])
    try:
        arguments = [json.loads(line) for line in given.splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(
            f"has a test {number} whose input is not a JSON value on each line, the arguments of {name}: {error}"
        ) from None
    return CallCase(name, arguments, [_value_or_text(expected)])


def _value_or_text(expected: Any) -> Any:
    if not isinstance(expected, str):
        return expected
    try:
        return json.loads(expected)
    except ValueError:
        return expected


def _unwrapped(cases: Sequence[Case]) -> Sequence[Case]:
    """Returns tests of a row in which the value in a list of one is right as well, if each test expects such a list.

    APPS writes what a function returns as a list of one; from a single test, this cannot be told from a list.
    """
    values = [case.expected[0] for case in cases if isinstance(case, CallCase)]
    if not values or len(values) < len(cases) or not all(isinstance(one, list) and len(one) == 1 for one in values):
        return cases
    return [
        replace(case, expected=[*case.expected, case.expected[0][0]]) for case in cases if isinstance(case, CallCase)
    ]


def _text(value: Any) -> str | None:
    """Returns a text, which APPS sometimes splits into lines; None for any other value."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None
