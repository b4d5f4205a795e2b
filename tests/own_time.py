"""Replaces functions of `time` in one module of the product.

`time.sleep` itself is everybody's: a thread that an earlier test has left would sleep in the replacement, and use up what a test
hands out by calls. So the module gets a `time` of its own.

Consumes a module that has imported `time`; produces one whose `time` differs in what the test names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def replace_time(patch: pytest.MonkeyPatch, module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Replaces functions of `time`, such as `sleep`, for a module alone, until the patch is undone."""
    patch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
