"""What `make quick` leaves out: the tests that it names exist, and files that start processes as they are imported."""

from __future__ import annotations

import ast

import pytest

from tests.quick import LONG, TESTS, is_long, needs_more


@pytest.mark.parametrize("place", sorted({name.partition("::")[0] for name in LONG}))
def test_long_tests_exist(place: str) -> None:
    found = {
        name
        for node in ast.parse((TESTS / place).read_text()).body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
    }
    assert {name.partition("::")[2] for name in LONG if name.partition("::")[0] == place} <= found


def test_long_tests_are_known_with_their_parameters_and_others_are_not() -> None:
    file = TESTS / "spec" / "test_load.py"
    assert is_long(file, "tests/spec/test_load.py::test_too_deep") and not is_long(file, "x.py::test_too_deep_2")
    machine = TESTS / "queueing" / "test_machine.py"
    assert is_long(machine, "tests/queueing/test_machine.py::TestQueue::runTest")
    storage = TESTS / "test_storage.py"
    assert is_long(storage, "tests/test_storage.py::test_acknowledged_data_survives_any_crash[shard]")


@pytest.mark.parametrize("name", ["rewards/test_code_rows.py", "rewards/test_code_tests.py", "test_wheel.py"])
def test_files_that_start_processes_while_they_are_imported_are_left_out(name: str) -> None:
    assert needs_more(TESTS / name)
    assert not needs_more(TESTS / "spec" / "test_load.py")
