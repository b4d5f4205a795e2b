"""Checks that the modules that a spec names are found by actors as this command finds them.

Consumes the spec. Raises `ConfigurationError` for a module that actors would not find, or find elsewhere; produces remarks
about those that they find only because of the folder in which the command runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, SOURCES, WORKLOADS
from yatt_core.errors import ConfigurationError
from yatt_core.problems import Problems
from yatt_core.python_path import folders_of_the_command, modules_in_actors
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.data import FunctionSource

OWN = ("yatt", "yatt_core", "flows", "ops", "db")
"""Packages that every actor has."""
REWARDS = "yatt.rewards"
TOOLS = "yatt.tools"


def check_modules(spec: RunSpec) -> list[str]:
    """Returns a remark for each module that actors find only because of the command's own folder.

    Raises `ConfigurationError` for modules that they do not find, or not in the same file.
    """
    modules = {module: place for place, module in _modules(spec)}
    here = {module: origin for module in modules if (origin := _origin(module)) is not None}
    if not here:
        return []
    folders = folders_of_the_command()
    problems = Problems()
    remarks = list[str]()
    with_folders = modules_in_actors(here, folders)
    alone = modules_in_actors(here, ())
    for module, origin in here.items():
        place = f"{modules[module]}: module {module!r}"
        if not _same(with_folders[module], origin):
            problems.note(ConfigurationError(f"{place} {_elsewhere(with_folders[module], origin)}"))
        elif not _same(alone[module], origin):
            remarks.append(
                f"{place} is found because the command runs in {origin.parent}; a run that is resumed from elsewhere, by a "
                "schedule or from the dashboard, does not find it: install it, put its folder on PYTHONPATH, or name its file"
            )
    problems.raise_any()
    return remarks


def _modules(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Yields the modules of functions that actors look up, each with the key that names it."""
    for place, name, group in _names(spec):
        if ":" in name:
            module = name.partition(":")[0]
        else:
            module = next((point.module for point in entry_points(group=group) if point.name == name), "")
        if module and module.partition(".")[0] not in OWN:
            yield place, module


def _names(spec: RunSpec) -> Iterator[tuple[str, str, str]]:
    """Yields the key, the name and the group of entry points of each function of the user's."""
    for number, part in enumerate(spec.rewards.parts):
        if getattr(part, "function", None):
            yield f"rewards.parts.{number}.function", getattr(part, "function", ""), REWARDS
    if spec.workload.function:
        yield "workload.kind", spec.workload.function, WORKLOADS
    if isinstance(loss := spec.algorithm.loss, CustomLoss) and loss.function:
        yield "algorithm.loss.function", loss.function, LOSSES
    if isinstance(advantage := spec.algorithm.advantage, CustomAdvantage) and advantage.function:
        yield "algorithm.advantage.function", advantage.function, ADVANTAGES
    for number, source in enumerate(spec.data.sources):
        if isinstance(source, FunctionSource) and source.function:
            yield f"data.sources.{number}.function", source.function, SOURCES
    for number, tool in enumerate(spec.rollout.tools.functions if spec.rollout.tools else ()):
        if tool.function:
            yield f"rollout.tools.functions.{number}.function", tool.function, TOOLS


def _origin(module: str) -> Path | None:
    """Returns the module's file as this process finds it; None if it does not, which is reported with the function."""
    try:
        found = importlib.util.find_spec(module)
    except (Exception, SystemExit):  # noqa: BLE001 - a package above it may fail in any way when it is imported
        return None
    return None if found is None or found.origin is None else Path(found.origin).absolute()


def _same(found: str | None, origin: Path) -> bool:
    return found is not None and Path(found).resolve() == origin.resolve()


def _elsewhere(found: str | None, origin: Path) -> str:
    is_what = "is not found by actors" if found is None else f"is {found} for actors"
    return f"{is_what}, but {origin} for this command; install it, put its folder on PYTHONPATH, or name its file"
