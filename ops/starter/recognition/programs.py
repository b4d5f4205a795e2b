"""Rows with a task for a program and tests of it: APPS, TACO, DeepCoder, HumanEval, MBPP and their like.

Consumes a table. Produces a `Recognised`, or None for other rows. Raises `ConfigurationError` for tests that cannot be run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ops.starter.recognition.choices import named
from ops.starter.recognition.prompt_parts import PromptParts, prompt_parts
from ops.starter.recognition.recognised import RL, Abilities, Recognised, RecognitionOptions, RewardChoice
from ops.starter.recognition.table import Table, parsed, text_of, value_of
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.code_cases import CaseKeys, row_tests

TEST_KEYS = (
    "input_output", "tests", "test_cases", "test_list", "unit_tests", "private_test_cases", "private_tests", "asserts", "test",
    "reward_model.ground_truth", "reward_spec.ground_truth", "verification_info.test_cases", "verification_info",
    "extra_info.tests", "extra_info.test_cases", "ground_truth", "public_tests", "public_test_cases",
)  # fmt: skip
SETUP_KEYS = ("test_setup_code", "test_imports", "setup_code", "test_setup", "import_code")
TASKS = (
    "question", "problem", "prompt", "text", "description", "instruction", "messages", "task", "query", "conversations",
    "conversation", "user", "problem_description",
)  # fmt: skip
"""Keys of prompts, without `input`, which is often that of a test."""
BEGUN = ("prompt", "query", *TASKS)
"""The same for tests that call a function, whose beginning is a prompt in HumanEval's rows."""
CHECK = "def check("
_LISTS = ({"inputs", "outputs"}, {"input", "output"})
_CODE = re.compile(r"(?:from|import|class|def|async def|pass|return)\b|[@#]|[\w.]+\s*=[^=]")
_PYTEST = re.compile(r"^\s*(?:async )?def test\w*\(", re.MULTILINE)
_STATEMENT = re.compile(r"^(?:assert\b|test\w*\(|[\w.]+\.main\(|if __name__)", re.MULTILINE)
"""What runs tests at the top level."""
_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
_ORDINARY = re.compile(r"[a-z]+")
_ARGUMENT = re.compile(r"\s*[A-Za-z_]\w*\s*=[^=]")


def programs(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns tasks with tests as RL, whose reward runs the tests on the response's program."""
    if not asked.allows(RL) or asked.own_reward or asked.answer_field:
        return None
    found = [key for key in table.all(*TEST_KEYS) if table.values(key) and all(map(_are_tests, table.values(key)))]
    checking = [key for key in found if any(_defines_check(value) for value in table.values(key))]
    entry = table.find("entry_point")
    others = [key for key in found if key not in checking]
    if checking and (entry is not None or not others):
        return _checked(table=table, asked=asked, model=model, key=checking[0], entry=entry)
    if not others:
        return None
    key = others[0]
    _refuse_arguments(table, key)
    _refuse_pytest(table, key)
    setup = next((name for name in table.all(*SETUP_KEYS) if table.values(name)), None)
    options = {"tests": key, **({"setup": setup} if setup else {})}
    try_tests(table.rows, options)
    parts = prompt_parts(table, asked, model, _tasks(table, TASKS), solved=True)
    if parts is None:
        return None
    if _are_statements(table, key) and "prompt_field" in parts.source and (unnamed := _unnamed(table, key, parts)):
        parts = _with_tests_shown(table, key, parts, unnamed)
    return _recognised(parts=parts, key=key, others=[setup] if setup else [], options=options, reads=_reads(table, key))


def _checked(table: Table, asked: RecognitionOptions, model: Abilities, key: str, entry: str | None) -> Recognised:
    """Returns rows as in HumanEval: the prompt is the beginning of the program, and the test calls a function by its name.

    Where the prompt has nothing but imports, as in LeetCodeDataset, these run before the program, and the task is elsewhere.
    """
    if entry is None:
        raise ConfigurationError(
            f"the tests under {key!r} define `check`, but no key names the function that it checks; expected 'entry_point'"
        )
    parts = prompt_parts(table, asked, model, _tasks(table, BEGUN), solved=True)
    if parts is None:
        raise ConfigurationError(
            f"the tests under {key!r} have no task: no key has more than code; name the key of the task with --prompt-field"
        )
    options = {"tests": key, "entry_point": entry}
    begin = table.find("prompt")
    if any(f"def {value_of(row, entry)}" in str(value_of(row, parts.used[0])) for row in table.rows):
        options["prefix"] = parts.used[0]
    elif begin is not None and begin not in parts.used and all(map(_is_preamble, table.values(begin))):
        options["setup"] = begin
    try_tests(table.rows, options)
    others = [value for name, value in options.items() if name != "tests" and value not in parts.used]
    return _recognised(
        parts=parts, key=key, others=others, options=options, reads="`check` on the function that `entry_point` names"
    )


def _tasks(table: Table, keys: Sequence[str]) -> list[str]:
    """Returns the keys under which most rows have more than code."""
    return [key for key in table.all(*keys) if not table.mostly(key, _is_code)]


def _is_code(value: Any) -> bool:
    """Returns whether a text has nothing but imports, assignments and beginnings of functions: it says no task."""
    lines = [line.strip() for line in text_of(value).splitlines() if line.strip()]
    return bool(lines) and all(map(_CODE.match, lines))


def _is_preamble(value: Any) -> bool:
    try:
        ast.parse(str(value))
    except (SyntaxError, ValueError):
        return False
    return _is_code(value)


def _defines_check(value: Any) -> bool:
    return isinstance(value, str) and CHECK in value


def _refuse_arguments(table: Table, key: str) -> None:
    """Raises `ConfigurationError` for inputs that name the arguments of a function, which no program reads."""
    for value in table.values(key):
        tests = parsed(value)
        inputs = [test.get("input") for test in tests if isinstance(test, Mapping)] if isinstance(tests, list) else []
        if inputs and all(isinstance(given, str) and _ARGUMENT.match(given) for given in inputs):
            raise ConfigurationError(
                f"the inputs under {key!r} name the arguments of a function ({inputs[0]!r:.60}), which no program reads; "
                "expected what it reads from standard input, 'fn_name' with lists of arguments, or statements that assert"
            )


def _refuse_pytest(table: Table, key: str) -> None:
    """Raises `ConfigurationError` for functions that pytest would call, and nothing else does."""
    for number, row in enumerate(table.rows, start=1):
        value = value_of(row, key)
        if isinstance(value, str) and _PYTEST.search(value) and not _STATEMENT.search(value):
            raise ConfigurationError(
                f"row {number}: the tests under {key!r} are functions of pytest, which nothing calls, so that no statement "
                "tests something; expected assert statements outside of functions"
            )


def _recognised(parts: PromptParts, key: str, others: list[str], options: Mapping[str, Any], reads: str) -> Recognised:
    if "image_field" in parts.source:
        raise ConfigurationError("the rows have images and tests of programs, which no built-in reward reads together")
    return Recognised(
        shape=f"tasks for programs: prompts in {parts.used[0]!r}, tests in {key!r}",
        objective=RL,
        source=parts.source,
        reward=RewardChoice(name="tests", function="code_tests", reads=reads, options=options),
        used=(*parts.used, key, *others),
        reasons=parts.reasons,
    )


def _are_tests(value: Any) -> bool:
    """Returns whether a value looks like tests of a program: inputs and outputs, or statements that assert something."""
    value = parsed(value)
    if isinstance(value, Mapping):
        return any(keys <= set(value) for keys in _LISTS)
    if isinstance(value, list):
        return bool(value) and all(_is_test(one) for one in value)
    return isinstance(value, str) and ("assert " in value or CHECK in value)


def _is_test(value: Any) -> bool:
    if isinstance(value, Mapping):
        return {"input", "output"} <= set(value)
    return isinstance(value, str) and value.lstrip().startswith("assert")


def try_tests(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for the first row whose tests cannot be read, or test nothing."""
    keys = CaseKeys(**options)
    for number, row in enumerate(rows, start=1):
        try:
            row_tests(Prompt(source=0, index=number, prompt_id=str(number), text="", answer=None, entry=row), keys)
        except DataError as error:
            raise ConfigurationError(str(error)) from None


def _are_statements(table: Table, key: str) -> bool:
    values = (parsed(value) for value in table.values(key))
    return all(isinstance(value, list) and all(isinstance(one, str) for one in value) for value in values)


def _unnamed(table: Table, key: str, parts: PromptParts) -> list[int]:
    """Returns the places of the rows whose prompt names no function that their first test calls."""
    called = [_CALL.findall(_first_test(value_of(row, key))) for row in table.rows]
    texts = enumerate(zip(called, parts.texts, strict=True))
    return [place for place, (names, text) in texts if names and not any(_is_named(name, text) for name in names)]


def _first_test(value: Any) -> str:
    tests = parsed(value)
    return str(tests[0]).strip().removeprefix("assert") if isinstance(tests, list) and tests else ""


def _is_named(name: str, text: str) -> bool:
    """Returns whether a text names a function; a name such as `add` may also be a word of the text."""
    word = rf"(?<!\w){re.escape(name)}(?!\w)"
    if _ORDINARY.fullmatch(name) is None:
        return re.search(word, text) is not None
    signs = rf"[`'\"*.]{word}|{word}(?:[`'\"*]|\s*\()"
    return re.search(rf"{signs}|\b(?:def|function|method|named|called|name|it)\b[\s:]+{word}", text) is not None


def _with_tests_shown(table: Table, key: str, parts: PromptParts, unnamed: list[int]) -> PromptParts:
    """Returns prompts that show the tests, from which alone the name of the function is known (as MBPP is usually asked).

    unnamed: the places of the rows whose prompt does not name it; all prompts have one form.
    """
    if any(isinstance(value, str) for value in table.values(key)):
        raise ConfigurationError(
            f"{len(unnamed)} of the first {len(table.rows)} tasks under {parts.used[0]!r} do not name the function that "
            f"{key!r} tests (row {unnamed[0] + 1}); expected prompts that say it"
        )
    template = f"{{{{ {named(parts.used[0])} }}}}\n\nYour code should pass these tests:\n\n{{{{ {named(key)} | join('\\n') }}}}"
    which = (
        "the task does"
        if len(unnamed) == len(table.rows)
        else f"{len(unnamed)} of the first {len(table.rows)} tasks do"
    )
    reason = f"the prompt shows the tests in {key!r}, because {which} not name the function that they call"
    others = {name: value for name, value in parts.source.items() if name != "prompt_field"}
    return replace(parts, source={"prompt_template": template, **others}, reasons=(*parts.reasons, reason))


def _reads(table: Table, key: str) -> str:
    what = "statements" if _are_statements(table, key) else "inputs and outputs"
    return f"the program in the last fenced block, on each row's {what}"
