"""Tests as data sets have them: what each means, what passes them, and that nothing passes because nothing was called."""

import json

import pytest

from tests.matrix import in_verify
from tests.rewards.test_code_tests import ISOLATION
from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.code_cases import CallCase, CaseKeys, ProgramCase, read_cases, row_tests
from yatt_core.rewards.code_harness import assembled
from yatt_core.rewards.code_tests import CodeTests, check_rows, code_tests

TWICE = "def twice(x):\n    return 2 * x"
METHOD = "class Solution:\n    def twice(self, x: List[int]) -> List[int]:\n        return [2 * one for one in x]"
UNRELATED = "print('hello')"
CHECK = (
    "METADATA = {'author': 'lk'}\n\ndef check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n"
)
HEAD = 'import math\n\ndef twice(x: int) -> int:\n    """ Double x.\n    >>> twice(2)\n    4\n    """\n'


def score(columns, code, fence=True, **options):
    prompt = Prompt(0, 4, "0/train/a.jsonl:5", "text", None, columns)
    response = f"```python\n{code}\n```" if fence else code
    return code_tests(prompt, response, CodeTests(isolation=ISOLATION, **options))


CALLS = [
    {"fn_name": "twice", "inputs": [[2], [5]], "outputs": [4, 10]},
    {"fn_name": "twice", "inputs": [[2], [5]], "outputs": [[4], [10]]},
    [{"type": "function_call", "fn_name": "twice", "input": [2], "output": [4]}],
    [{"testtype": "functional", "input": "2", "output": "4", "metadata": {"func_name": "twice"}}],
    [{"testtype": "functional", "input": "2", "output": "4", "metadata": json.dumps({"func_name": "twice"})}],
]


@pytest.mark.parametrize("tests", CALLS)
@pytest.mark.parametrize("as_text", [0, 2, *in_verify(1)])
def test_a_function_is_called_and_its_value_is_compared(tests, as_text):
    for _ in range(as_text):
        tests = json.dumps(tests)
    assert score({"tests": tests}, TWICE) == 1.0
    assert score({"tests": tests}, TWICE.replace("2 *", "3 *")) == 0.0
    assert score({"tests": tests}, UNRELATED) == 0.0


@pytest.mark.parametrize(
    ("code", "given", "expected", "right"),
    [
        (METHOD, [[1, 2]], [2, 4], True),
        (METHOD, [[]], [], True),
        ("def twice(x): return (x, {'a': (x,)})", [1], [1, {"a": [1]}], True),
        ("def twice(x): return 0.1 + 0.2", [1], 0.3, True),
        ("def twice(x): return 3", [1], 3.5, False),
        ("def twice(x): return '3'", [1], 3, False),
        ("def twice(x, y): return x + y", ["a", "b"], "ab", True),
        ("def twice(x): return None", [1], None, True),
        ("def twice(x): return [1, 2]", [1], 1, False),
        ("def twice(x): return 1", [1], [1, 2], False),
        ("def twice(x): return object()", [1], [], False),
        ("import os\ndef twice(x): os._exit(0)", [1], None, False),
        ("def twice(x):\n    print(3)\n    return 3", [1], 3, True),
        ("print(3)\nraise SystemExit", [1], 3, False),
    ],
)
def test_what_a_function_returns_is_compared_as_json(code, given, expected, right):
    tests = [{"fn_name": "twice", "input": given, "output": expected}] * 2
    assert score({"tests": tests}, code) == float(right)


@pytest.mark.parametrize("key", ["entry", "extra.entry"])
def test_a_column_names_the_function_of_tests_that_do_not(key):
    columns = {"tests": [{"input": [2], "output": 4}], "entry": "twice", "extra": {"entry": "twice"}}
    assert score(columns, TWICE, entry_point=key) == 1.0
    assert score(columns, UNRELATED, entry_point=key) == 0.0


@pytest.mark.parametrize(
    ("code", "fence", "right"),
    [
        ("    return x * 2\n", True, True),
        ("    return x * 2\n", False, True),
        ("return x * 2", True, True),
        ("y = x\nreturn math.floor(y * 2)", True, True),
        ("def twice(x):\n    return x * 2", True, True),
        ("from typing import Any\n\ndef twice(x: Any):\n    return x * 2", True, True),
        ("    return x * 3", True, False),
        (UNRELATED, True, False),
        ("x = 1", True, False),
        ("def check(candidate):\n    pass", True, False),
        ("raise SystemExit", True, False),
        ("", True, False),
    ],
)
def test_a_response_continues_the_code_of_its_prompt(code, fence, right):
    columns = {"prompt": HEAD, "entry_point": "twice", "test": CHECK}
    keys = {"tests": "test", "entry_point": "entry_point", "prefix": "prompt"}
    assert score(columns, code, fence, **keys) == float(right)


def test_a_head_without_a_docstring_takes_a_body_or_the_whole_function():
    for code in ("    return 2 * x", "return 2 * x", "def twice(x):\n    return 2 * x"):
        scope = {}
        exec(assembled("def twice(x):\n", code), scope)
        assert scope["twice"](4) == 8


@pytest.mark.parametrize("setup", ["class Box:\n    size = 4", ["class Box:", "    size = 4"], None, ""])
def test_set_up_code_runs_before_the_tests(setup):
    columns = {"test_list": ["assert twice(2) == Box.size"], "first": setup}
    assert score(columns, TWICE, tests="test_list", setup="first") == float(bool(setup))


def test_tests_below_dotted_keys_are_found():
    tests = [{"input": "1", "output": "2"}]
    code = "print(2 * int(input()))"
    for columns, key in (
        ({"reward_model": {"ground_truth": json.dumps(tests)}}, "reward_model.ground_truth"),
        ({"extra_info": {"tests": {"inputs": ["1"], "outputs": ["2"]}}}, "extra_info.tests"),
        ({"extra_info": json.dumps({"tests": tests})}, "extra_info.tests"),
    ):
        assert score(columns, code, tests=key) == 1.0
        assert score(columns, UNRELATED, tests=key) == 0.0
    with pytest.raises(DataError, match=r"column 'extra_info\.test' is missing"):
        score({"extra_info": {"tests": tests}}, code, tests="extra_info.test")


def test_the_forms_of_one_data_set_mean_the_same():
    program = [ProgramCase("1\n", "2")]
    assert list(read_cases({"inputs": ["1\n"], "outputs": ["2"], "fn_name": None})) == program
    assert (
        list(read_cases([{"input": "1\n", "output": "2", "testtype": "stdin", "metadata": {"func_name": None}}]))
        == program
    )
    assert list(read_cases([json.dumps({"input": "1\n", "output": "2", "type": "stdin_stdout"})])) == program
    assert list(read_cases({"input": ["1\n"], "output": ["2"]})) == program
    assert list(read_cases({"input": "1\n", "output": "2"})) == program
    assert list(read_cases([{"input": "[1, 2]\n3", "output": "[4]", "fn_name": "f"}])) == [
        CallCase("f", [[1, 2], 3], [[4], 4])
    ]
    assert list(read_cases([{"input": [1], "output": 2}], "Solution().f")) == [CallCase("f", [1], [2])]


@pytest.mark.parametrize(
    ("columns", "options", "passes"),
    [
        ({"tests": [{"input": "1", "output": ""}]}, {}, True),
        ({"tests": [{"input": "1", "output": " \n"}, {"input": "1", "output": "2"}]}, {}, False),
        ({"tests": ["if __name__ == '__main__':\n    assert twice(2) == 4"]}, {}, True),
        ({"tests": ["assert True"]}, {}, True),
        ({"tests": ["assert twice(2) == 4"]}, {}, False),
        ({"tests": CHECK, "name": "twice", "head": HEAD}, {"entry_point": "name", "prefix": "head"}, False),
        ({"tests": CALLS[0]}, {}, False),
    ],
)
def test_tests_that_an_empty_program_passes_are_noticed(columns, options, passes):
    prompt = Prompt(0, 4, "p", "text", None, columns)
    assert check_rows([prompt], [""], CodeTests(isolation=ISOLATION, **options)) == [float(passes)]


@pytest.mark.parametrize(
    "rude", ["import os\nos._exit(0)\nassert 1", "raise SystemExit(0)", "while True: pass", "assert f()"]
)
def test_rows_that_are_tried_together_do_not_affect_each_other(rude):
    tests = ["assert True", rude, "f = int\nassert f() == 0", "assert f() == 0", "assert True"]
    prompts = [Prompt(0, row, f"{row}", "text", None, {"tests": one}) for row, one in enumerate(tests)]
    found = check_rows(prompts, [""] * len(tests), CodeTests(isolation=ISOLATION, cpu_seconds=1))
    assert found == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_code_in_thoughts_does_not_count_unless_it_may():
    columns = {"tests": ["assert twice(2) == 4"]}
    drafted = f"<think>\n```python\n{TWICE}\n```\n</think>\nI give up."
    assert score(columns, drafted, fence=False) == 0.0
    assert score(columns, drafted, fence=False, with_thoughts=True) == 1.0
    corrected = f"<think>\n```python\n{UNRELATED}\n```\n</think>\n```python\n{TWICE}\n```"
    assert score(columns, corrected, fence=False) == 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [("name with spaces(", "cannot call"), (3, "column 'name' is int; expected text")],
)
def test_a_name_that_is_none_is_an_error(value, message):
    prompt = Prompt(0, 4, "p", "text", None, {"tests": CHECK, "name": value})
    with pytest.raises(DataError, match=message):
        row_tests(prompt, CaseKeys(entry_point="name"))
