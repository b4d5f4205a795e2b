"""Imports a task of the reasoning-gym package without the hundred others, and what these import: matplotlib, SymPy.

Consumes a task's name. Produces the package's module `factory`, whose registry has the task, or all of them. The package imports
all its tasks when it is imported itself, so a task whose module has its name (`algorithmic/spell_backward.py`) is imported with
nothing around it: for this time, the package and the folder are modules without contents. Then all of them are forgotten, so
that an import of the package elsewhere, such as in a reward function, gives the whole one. Tasks whose modules have other names,
or need more of the package, have the whole one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from threading import Lock
from types import ModuleType

from yatt_core.datasets import running_sums

PACKAGE = "reasoning_gym"
FILES = f"{PACKAGE}.data"
"""The module that reads the package's files, by its own name and when a dataset is created. It is the same for all."""
_LOCK = Lock()


@functools.cache
def all_tasks() -> ModuleType:
    """Imports the whole package, which takes seconds; returns its factory, with all tasks."""
    return _factory()


@functools.cache
def one_task(task: str) -> ModuleType | None:
    """Imports the module of a task; returns a factory with the task.

    Returns None if the whole package is needed, or has been imported before.
    """
    with _LOCK:
        folder = folder_of(task)
        if folder is None or PACKAGE in sys.modules:
            return None
        try:
            _add_package(PACKAGE, folder.parent)
            _add_package(f"{PACKAGE}.{folder.name}", folder)
            importlib.import_module(
                f"{PACKAGE}.coaching"
            )  # first, as in the package: it and the factory import each other
            importlib.import_module(f"{PACKAGE}.{folder.name}.{task}")
            factory = _factory()
        except (ImportError, AttributeError):  # it uses what the package itself has
            return None
        finally:
            for name in [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]:
                if name != FILES:
                    del sys.modules[name]
        return factory if task in factory.DATASETS else None


def folder_of(task: str) -> Path | None:
    """Returns the folder with the module of a task's name; None if there is none, or several."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None or not task.isidentifier():
        return None
    found = [path for place in spec.submodule_search_locations for path in Path(place).glob(f"*/{task}.py")]
    return found[0].parent if len(found) == 1 else None


def _factory() -> ModuleType:
    """Returns the factory of the modules that are imported, with YATT's own task."""
    factory = importlib.import_module(f"{PACKAGE}.factory")
    running_sums.register(factory)
    return factory


def _add_package(name: str, folder: Path) -> None:
    """Makes a package of a folder's modules, without running its own code."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
