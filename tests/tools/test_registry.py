"""Tools are found like reward functions; unusable ones are reported before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.preflight.run import check_before_start
from tests.spec.trees import spec
from tests.tools.functions import counting
from yatt_core.errors import ConfigurationError
from yatt_core.tools.builtin import calculator
from yatt_core.tools.registry import find_tool


def test_entry_points_and_dotted_names() -> None:
    assert find_tool("c", "calculator", {}) is calculator
    assert find_tool("c", "tests.tools.functions:counting", {"file": "x"}) is counting


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("calculater", {}, r"'calculater' .*'yatt\.tools'; .*'calculator'"),
        ("tests.tools.functions:CALLS", {}, "CALLS'? is int"),
        ("calculator", {"digits": 3}, r"options \['digits'\]: "),
    ],
)
def test_an_unusable_function_is_a_configuration_error(
    tmp_path: Path, function: str, options: dict, message: str
) -> None:
    made = spec(rollout__tools={"functions": [{"name": "add", "function": function, "options": options}]})
    with pytest.raises(ConfigurationError, match=rf"rollout\.tools\.functions 'add': function .*{message}"):
        check_before_start(tmp_path, made)
