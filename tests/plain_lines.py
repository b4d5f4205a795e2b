"""Checks that lines are plain: one assignment a line, and names for the arguments of long calls.

`python -m tests.plain_lines` reads the repository's Python files, prints each line that is not plain with what would be, and
exits with 1 if there is any. Two rules:

- An assignment has several targets only to unpack one value or to exchange values.
- A call passes at most four arguments by position, except in `tests`. What takes them only by position may get more.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("flows", "yatt_core", "db", "ops", "yatt", "configs", "examples", "benchmarks", "clients", "tests")
WITHOUT_CALLS = frozenset({"tests"})
"""Folders whose calls are not looked at."""
MIGRATIONS = "versions"
MOST_BY_POSITION = 4
ONLY_BY_POSITION = frozenset(
    {
        # C functions and packed structures
        "mount",
        "pack",
        "prctl",
        "syscall",
        # shapes of tensors
        "permute",
        "reshape",
        "view",
        # operators of torch, autograd functions
        "_linear_pointwise",
        "adamw",
        "alltoall_base",
        "apply",
        # any number of things of one kind
        "Path",
        "_ask_dispatcher",
        "_number",
        "_yatt",
        "add_row",
        "all",
        "examples",
        "exported",
        "find",
        "gradients",
        "info",
        "plan_steps",
        "seeded_permutation",
        "select",
        "stable_seed",
        "warning",
        "yatt",
        "zip",
        # a function or class, then what it is called with
        "actor",
        "on_ranks",
        # calls of Ray
        "internal_kv_put",
        "remote",
    }
)
"""Names of functions that take more arguments, and have no names for them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is not plain.

    line: counted from 1.
    """

    line: int
    text: str


def faults_of(source: str, with_calls: bool) -> Iterator[Fault]:
    """Yields the lines of a module that are not plain.

    with_calls: whether calls are looked at too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and _is_parallel(node):
            yield Fault(node.lineno, "several values are assigned to several targets: use a line for each")
        if with_calls and isinstance(node, ast.Call) and _is_long(node):
            callee = ast.unparse(node.func)
            yield Fault(node.lineno, f"{callee} gets {len(node.args)} arguments by position: name them")


def has_plain_calls(file: Path) -> bool:
    """Returns whether the calls of a file are looked at.

    file: relative to the repository.
    """
    return file.parts[0] not in WITHOUT_CALLS and MIGRATIONS not in file.parts


def _is_parallel(node: ast.Assign) -> bool:
    """Returns True for `a, b = x, y`, but not for an exchange."""
    if not isinstance(node.value, ast.Tuple | ast.List):
        return False
    several = [target for target in node.targets if isinstance(target, ast.Tuple | ast.List)]
    if len(node.targets) != 1 or not several:
        return False
    targets = sorted(ast.unparse(element) for element in several[0].elts)
    values = sorted(ast.unparse(element) for element in node.value.elts)
    return targets != values


def _is_long(node: ast.Call) -> bool:
    callee = node.func
    name = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
    return len(node.args) > MOST_BY_POSITION and name not in ONLY_BY_POSITION


def main() -> int:
    """Prints the faults of the repository's files."""
    count = 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = path.relative_to(ROOT)
            for fault in faults_of(path.read_text(), has_plain_calls(file)):
                count += 1
                sys.stderr.write(f"{file}:{fault.line}: {fault.text}\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
