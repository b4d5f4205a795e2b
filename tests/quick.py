"""Selects what `make quick` leaves out: tests that need another process, a server, a ledger, Ray or a training engine.

A file is left out because of what it, its conftest and its helpers import, which is decided before any of them is
imported. A remaining test is skipped if it is about to start a process, and the longest ones are left out by name.
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
    "subprocess", "torch", "transformers", "vllm", "yatt_core.rewards.sandboxed_program",
)  # fmt: skip
"""Modules, each with its submodules. A ledger is a database, whose statements take longest to prepare."""

LONG = frozenset(
    {
        "algorithms/test_moments.py::test_a_resumed_run_continues_with_the_same_bits",
        "algorithms/test_moments.py::test_any_number_of_owners_gives_the_same_bits_iteration_after_iteration",
        "api/test_renaming.py::test_every_module_can_be_renamed_and_then_imports_no_part_by_its_short_name",
        "api/test_renaming.py::test_modules_name_each_other_in_text_by_the_names_that_they_have_themselves",
        "benchmarks/test_recovery.py::test_the_product_recovers_as_calculated_by_hand",
        "collection/test_critiques.py::test_killed_after_every_chunk_the_rewards_of_tokens_are_the_same_bits",
        "collection/test_judging.py::test_killed_after_every_chunk_results_are_equal_and_no_durable_verdict_is_requested_again",
        "costs/test_charging.py::test_a_record_is_read_back_as_it_was",
        "costs/test_charging.py::test_the_charges_before_and_after_a_time_add_up_to_all",
        "costs/test_charging.py::test_the_parts_add_up_to_the_whole_exactly",
        "datasets/test_evaluating_tasks.py::test_their_responses_are_not_scored",
        "datasets/test_file_contents.py::test_a_text_that_unpacks_a_thousandfold_is_refused",
        "datasets/test_sources.py::test_entries_survive_json",
        "dispatch/test_queue.py::TestDispatching",
        "docs/test_docstrings.py::test_a_docstring_begins_with_a_verb",
        "examples/test_corruption.py::test_a_wrong_answer_is_wrong_and_a_function_of_its_seed",
        "guards/test_memory.py::test_what_is_usual_raises_no_alarm",
        "placement/test_dynamic.py::test_a_replayed_log_takes_the_same_time",
        "placement/test_dynamic.py::test_later_iterations_do_not_change_earlier_plans",
        "placement/test_simulator.py::test_baselines_and_lower_bound_match_the_golden_figures",
        "queueing/test_machine.py::TestQueue",
        "rewards/test_builtin_rewards.py::test_a_million_hostile_characters_are_read_in_linear_time",
        "spec/test_load.py::test_too_deep",
        "spec/test_mistakes.py::test_anything_at_any_place_is_a_spec_or_a_readable_refusal",
        "test_storage.py::test_acknowledged_data_survives_any_crash",
    }
)
"""Tests, or classes of them, that take as long as many others together: `make test` runs them."""

OF_IMPORTS = ("fc-list", "ldconfig")
"""Programs that libraries start while they are imported: Matplotlib, which tasks of reasoning-gym import, looks for fonts, and
torch, if it is built for CUDA, for libraries.
Refused, they would leave a part of the tasks unknown, or torch unimported, to all tests that follow."""


def is_long(file: Path, node: str) -> bool:
    """Returns whether a test is one of `LONG`.

    node: its id, whose last parts are the names of a class, if there is one, and of the function with its parameters.
    """
    place = file.relative_to(TESTS).as_posix()
    return f"{place}::{node.partition('::')[2].partition('::')[0].partition('[')[0]}" in LONG


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
