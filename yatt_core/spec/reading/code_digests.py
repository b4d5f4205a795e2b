"""Fixes the Python files that a spec names: adds the SHA-256 of each, so that the spec stands for these contents.

Consumes a validated spec, and the files; produces the spec with digests, or the files by key. Raises `ConfigurationError`, which
names the key and the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, SOURCES, WORKLOADS, source_digest
from yatt_core.errors import ConfigurationError
from yatt_core.named_code import CodeFile, read_code_file
from yatt_core.spec.base import SpecModel
from yatt_core.spec.rewards.scheme import FunctionPart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.callbacks import CallbackSpec
from yatt_core.spec.sections.data import FunctionSource
from yatt_core.spec.sections.tools import ToolSpec
from yatt_core.spec.sections.workload import WorkloadSpec

Place = tuple[str | int, ...]
Origin = Callable[[Sequence[str | int]], str]
Part = TypeVar("Part", bound=SpecModel)
NAMING = (FunctionPart, CustomLoss, CustomAdvantage, FunctionSource, ToolSpec, CallbackSpec, WorkloadSpec)
"""The parts of a spec that may name a file."""
VOUCHED: dict[type[SpecModel], str] = {
    CustomLoss: LOSSES,
    CustomAdvantage: ADVANTAGES,
    FunctionSource: SOURCES,
    WorkloadSpec: WORKLOADS,
}
"""Those whose digest also stands for installed code, with their group of entry points."""


def with_digests(spec: RunSpec, origin: Origin) -> RunSpec:
    """Returns the spec with the digest of each file, and of the source of each method of its own, that has none yet.

    origin: returns the name of what set a key, for error messages.
    """
    algorithm = {key: _fixed(getattr(spec.algorithm, key), ("algorithm", key), origin) for key in ("loss", "advantage")}
    changes: dict[str, Any] = {
        "workload": _fixed(spec.workload, ("workload",), origin),
        "rewards": spec.rewards.model_copy(update={"parts": _all(spec.rewards.parts, ("rewards", "parts"), origin)}),
        "algorithm": spec.algorithm.model_copy(update=algorithm),
        "data": spec.data.model_copy(update={"sources": _all(spec.data.sources, ("data", "sources"), origin)}),
        "callbacks": _all(spec.callbacks, ("callbacks",), origin),
    }
    if spec.rollout.tools is not None:
        functions = _all(spec.rollout.tools.functions, ("rollout", "tools", "functions"), origin)
        tools = spec.rollout.tools.model_copy(update={"functions": functions})
        changes["rollout"] = spec.rollout.model_copy(update={"tools": tools})
    return spec.model_copy(update=changes)


def files_by_key(spec: RunSpec) -> dict[str, CodeFile]:
    """Returns the files that a spec names, by the dotted key that names each."""
    parts: list[tuple[Place, SpecModel]] = [
        (("workload",), spec.workload),
        (("algorithm", "loss"), spec.algorithm.loss),
        (("algorithm", "advantage"), spec.algorithm.advantage),
    ]
    tools = () if spec.rollout.tools is None else spec.rollout.tools.functions
    lists: list[tuple[Place, Sequence[SpecModel]]] = [
        (("rewards", "parts"), spec.rewards.parts),
        (("data", "sources"), spec.data.sources),
        (("callbacks",), spec.callbacks),
        (("rollout", "tools", "functions"), tools),
    ]
    for place, listed in lists:
        parts += [((*place, number), part) for number, part in enumerate(listed)]
    named = {}
    for place, part in parts:
        if isinstance(part, NAMING) and part.file is not None:
            key = ".".join(map(str, (*place, "file")))
            named[key] = CodeFile.named(key, part.file, part.sha256)
    return named


def _all(parts: Iterable[Part], place: Place, origin: Origin) -> tuple[Part, ...]:
    return tuple(_fixed(part, (*place, number), origin) for number, part in enumerate(parts))


def _fixed(part: Part, place: Place, origin: Origin) -> Part:
    """Returns a part with its digest, if it names code that has one."""
    return part.model_copy(update={"sha256": digest}) if (digest := _digest(part, place, origin)) else part


def _digest(part: SpecModel, place: Place, origin: Origin) -> str | None:
    """Returns the digest of the code that a part names; None if it has one, or names none that is vouched for."""
    if not isinstance(part, NAMING) or part.sha256 is not None:
        return None
    if part.file is not None:
        key = (*place, "file")
        said = f"{origin(key)}: {'.'.join(map(str, key))}"
        return hashlib.sha256(read_code_file(CodeFile.named(said, part.file, None).path, said)).hexdigest()
    group = next((group for kind, group in VOUCHED.items() if isinstance(part, kind)), None)
    if group is None or part.function is None:
        return None
    try:
        return source_digest(part.function, group)
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin((*place, 'function'))}: {error}") from error
