"""Selects what `make quick` leaves out: tests that need another process, a server, a ledger, Ray or a training engine.

A file is left out because of what it, its conftest and its helpers import, which is decided before any of them is
imported. A remaining test is skipped if it is about to start a process.
"""

from __future__ import annotations

import ast
import multiprocessing.process
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

TESTS = Path(__file__).parent
HEAVY = (
    "db.ledger", "fastapi", "megatron", "mlflow", "multiprocessing", "playwright", "prefect", "psycopg", "ray", "sqlalchemy",
    "subprocess", "torch", "transformers", "vllm",
)  # fmt: skip
"""Modules, each with its submodules. A ledger is a database, whose statements take longest to prepare."""


OF_IMPORTS = ("fc-list",)
"""Programs that libraries start while they are imported: Matplotlib, which tasks of reasoning-gym import, looks for fonts.
Refused, it would leave a part of the tasks unknown to all tests that follow."""


def needs_more(file: Path) -> bool:
    """Returns whether a test file imports a heavy module, directly or through other files of `tests`."""
    return any(_is_heavy(name) for part in _reached(file) for name in _imports(part))


def _is_heavy(name: str) -> bool:
    return any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY)


def _reached(file: Path) -> set[Path]:
    """Returns the file, the conftest files above it except the topmost, and everything they import from `tests`."""
    reached: set[Path] = set()
    waiting = [file]
    waiting += [
        found for folder in file.parents if TESTS in folder.parents if (found := folder / "conftest.py").exists()
    ]
    while waiting:
        if (path := waiting.pop()) not in reached:
            reached.add(path)
            waiting += _own(path)
    return reached


@cache
def _imports(file: Path) -> frozenset[str]:
    """Returns the names of imported modules and of the names imported from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _own(file: Path) -> Iterator[Path]:
    for name in _imports(file):
        path = TESTS.parent.joinpath(*name.split("."))
        if name.startswith("tests.") and (found := path.with_suffix(".py")).is_file():
            yield found


def refuse_processes() -> None:
    """Makes every test that starts a process skip from now on."""
    start = subprocess.Popen.__init__

    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.skip("starts a process: make test runs it")

    def refuse_others(process: Any, command: Any, *rest: Any, **more: Any) -> None:
        program = command.split()[0] if isinstance(command, str) else str(command[0])
        if Path(program).name not in OF_IMPORTS:
            refuse()
        start(process, command, *rest, **more)

    subprocess.Popen.__init__ = refuse_others  # type: ignore[method-assign]
    multiprocessing.process.BaseProcess.start = refuse  # type: ignore[method-assign]
    os.fork = refuse
