"""Calls a function on a module as soon as it has been imported. Standard library alone: Ray's workers load it first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

Hook = Callable[[ModuleType], None]


def after_import(hooks: Mapping[str, Hook]) -> None:
    """From here on, in this process: module name -> what is called on it."""
    sys.meta_path.insert(0, _AfterImport(hooks))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the others find a module and calls its hook once it has been executed."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self._hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._hooks[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
