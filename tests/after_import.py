"""Calls a function on a module once it is imported. Standard library only, because Ray's workers load this first."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

Hook = Callable[[ModuleType], None]


def after_import(hooks: Mapping[str, Hook]) -> None:
    """Calls each hook with the module of its name once that module is imported in this process."""
    sys.meta_path.insert(0, _AfterImport(hooks))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the standard path finder load a module and calls its hook after the module has been executed."""

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
