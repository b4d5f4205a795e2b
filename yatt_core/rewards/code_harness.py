"""The program that tests a response's code inside the sandbox: it is executed there as a file, and imports nothing of YATT.

Consumes a token on standard input, and `task.json`: texts of code, and what to call. Produces the token on standard output
if all of it ran, followed by what the called function returned, as JSON. The token is read before the code runs and
written after it: leaving early is not passing.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASK = "task.json"
MODULE = "solution"
USUAL = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, floor, gcd, inf, isqrt, log, log2, perm, pi, prod, sqrt
from typing import *
"""
"""What the signatures of programming contests take for granted, as `List[int]`."""


def assembled(prefix: str, code: str) -> str:
    """Returns a program: code behind a prefix, of which it is the continuation, the body of the last function, or all."""
    if not prefix:
        return code
    joined = f"{prefix.rstrip()}\n{code}"
    indented = textwrap.indent(textwrap.dedent(code), "    ")
    choices = [joined, f"{prefix.rstrip()}\n    pass\n{code}"] if _compiles(code) else [joined]
    choices.append(f"{prefix.rstrip()}\n{indented}")
    return next((text for text in choices if _compiles(text)), joined)


def _compiles(code: str) -> bool:
    try:
        compile(code, MODULE, "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def run() -> None:
    """Executes the task of this folder."""
    write = os.write
    leave = os._exit
    dumps = json.dumps
    token = os.read(0, 64)
    task: dict[str, Any] = json.loads(Path(TASK).read_text(encoding="utf-8"))
    if "rows" in task:
        passed = [number for number, cases in enumerate(task["rows"]) if _passes_all(cases)]
        answer = dumps(passed).encode()
    else:
        answer = _executed(task, dumps)
    sys.stdout.flush()
    write(1, token + answer)
    leave(0)


def _executed(task: dict[str, Any], dumps: Callable[..., str]) -> bytes:
    """Executes one test in a module of its own; returns the value of the function that it calls, as JSON."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module

    def execute(code: str, name: str) -> None:
        exec(compile(code, name, "exec"), module.__dict__)

    execute(USUAL if "name" in task else "", "usual.py")
    execute(task["setup"], "setup.py")
    execute(assembled(task["prefix"], task["code"]), "solution.py")
    if "name" not in task:
        execute(task["statements"], "statements.py")
        return b""
    name = task["name"]
    solution: Any = module.__dict__.get("Solution")
    function = getattr(solution(), name) if hasattr(solution, name) else module.__dict__[name]
    return dumps(function(*task["arguments"]), default=list).encode()


def _passes_all(cases: list[dict[str, Any]]) -> bool:
    """Returns whether statements of a row, which are not those of a policy, all end without an exception."""
    try:
        for case in cases:
            _executed(case, json.dumps)
    except (Exception, SystemExit):  # noqa: BLE001 - any exception is a test that is not passed
        return False
    return True


if __name__ == "__main__":
    run()
