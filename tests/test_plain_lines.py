"""The check of plain lines: what it refuses and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plain_lines import FOLDERS, faults_of, has_plain_calls


@pytest.mark.parametrize(
    "line",
    ["a, b = 1, 2", "a, b = [], {}", "self.a, b = x(), y", "a, b = [x, y]", "[a, b] = x, y", "a, b = b, a + b"],
)
def test_parallel_assignments_are_faults(line: str) -> None:
    (fault,) = faults_of(f"\n{line}", with_calls=False)
    assert fault.line == 2


@pytest.mark.parametrize("line", ["a, b = b, a", "x[i], x[j] = x[j], x[i]", "a, b = pair()", "a = b = 1", "a = 1, 2"])
def test_unpacking_and_exchanges_are_plain(line: str) -> None:
    assert not list(faults_of(line, with_calls=True))


def test_long_calls_name_their_arguments() -> None:
    (fault,) = faults_of("write(a, b, c, d, e)", with_calls=True)
    assert fault.text == "write gets 5 arguments by position: name them"
    for plain in ("write(a, b, c, d)", "write(a, b, c, d, e=e)", "tensor.view(a, b, c, d, e)"):
        assert not list(faults_of(plain, with_calls=True))
    assert not list(faults_of("write(a, b, c, d, e)", with_calls=False))


def test_calls_are_looked_at_everywhere_but_in_tests_and_migrations() -> None:
    assert {folder for folder in FOLDERS if not has_plain_calls(Path(folder, "module.py"))} == {"tests"}
    assert not has_plain_calls(Path("db", "migrations", "versions", "0001_first.py"))
