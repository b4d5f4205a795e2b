"""Asks the recognisers of installed workloads what a file or folder is, and writes the spec of a run on it.

Consumes a path, and the functions that entry points of the group `yatt.recognisers` name (`yatt_core.workloads.contract`).
Produces what was recognised, and `NAME.yaml`. Raises `ConfigurationError`, which names the recogniser.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from ops.starter.packages import GROUP, recogniser_points
from ops.starter.writing import write_whole
from ops.starter.yaml_lines import remark
from yatt_core.errors import ConfigurationError
from yatt_core.installed import error_place, failure_text, find_function
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.workloads.contract import Recognition

NONE = "none"
"""Stands for no recogniser."""
REMEDY = f"repair or remove its package, or leave it out with --recogniser {NONE}"


@dataclass(frozen=True, slots=True)
class WorkloadLook:
    """What a recogniser says of a path.

    recogniser: its distribution and its name, such as `yatt-workloads:corpus`.
    path: absolute.
    """

    recogniser: str
    path: Path
    recognition: Recognition

    @property
    def kind(self) -> str:
        """The kind of the workload."""
        return str(self.recognition.spec["workload"]["kind"])


def look_for_workload(path: Path, chosen: str | None) -> WorkloadLook | None:
    """Returns what a path is for a workload; None if no recogniser knows it.

    chosen: name of the only recogniser that is asked, with or without its distribution; `NONE` asks none.

    Raises `ConfigurationError` for a recogniser that cannot be imported or fails, for a path that several take for theirs, and
    for one that is meant for a workload which could not read it.
    """
    points = {_title(point): point for point in recogniser_points()}
    if chosen is not None:
        points = _chosen(points, chosen)
    found: dict[str, Recognition] = {}
    refused: dict[str, ConfigurationError] = {}
    expected: dict[str, str] = {}
    for title, point in sorted(points.items()):
        recognise = _function(title, point)
        expected[title] = " ".join((inspect.getdoc(recognise) or "").partition("\n\n")[0].split())
        try:
            answer = _asked(title, recognise, path.absolute())
        except _Unreadable as error:
            refused[title] = error
        else:
            if answer is not None:
                found[title] = answer
    if len(claims := sorted({*found, *refused})) > 1:
        raise ConfigurationError(
            f"{path}: {' and '.join(claims)} take it for theirs; choose one, such as --recogniser {claims[0]}, or none of them "
            f"with --recogniser {NONE}"
        )
    for refusal in refused.values():
        if chosen is None:
            raise ConfigurationError(f"{refusal}; if it is something else, say --recogniser {NONE}") from refusal
        raise refusal
    for title, recognition in found.items():
        return WorkloadLook(title, path.absolute(), recognition)
    if chosen not in (None, NONE):
        told = "".join(f"; {title}: {text}" for title, text in expected.items() if text)
        raise ConfigurationError(f"--recogniser {chosen}: {path} is nothing that it recognises{told}")
    return None


class _Unreadable(ConfigurationError):
    """A path is meant for a workload, which could not read it."""


def _title(point: EntryPoint) -> str:
    return point.name if point.dist is None else f"{point.dist.name}:{point.name}"


def _chosen(points: Mapping[str, EntryPoint], chosen: str) -> dict[str, EntryPoint]:
    if chosen == NONE:
        return {}
    found = {title: point for title, point in points.items() if chosen in (title, point.name)}
    if not found:
        raise ConfigurationError(
            f"--recogniser {chosen}: there is none of this name; installed: {', '.join(sorted(points)) or NONE}"
        )
    return found


def _function(title: str, point: EntryPoint) -> Callable[[Path], Any]:
    """Returns a recogniser. Raises `ConfigurationError` for one that cannot be imported."""
    try:
        return find_function(point.value, GROUP, f"recogniser {title}")
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; {REMEDY}") from error


def _asked(title: str, recognise: Callable[[Path], Any], path: Path) -> Recognition | None:
    """Returns a recogniser's answer. Raises `_Unreadable` for its `ValueError`, and `ConfigurationError` for other failures."""
    place = f"recogniser {title}"
    try:
        found = recognise(path)
    except ValueError as error:
        raise _Unreadable(f"{place}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{place} failed: {error_place(error)}: {failure_text(error)}; {REMEDY}") from error
    if found is not None and not _is_sound(found):
        raise ConfigurationError(
            f"{place} returned {found!r:.200}; expected None, or a Recognition whose spec has workload.kind and no name; {REMEDY}"
        )
    return found  # type: ignore[no-any-return]


def _is_sound(found: Any) -> bool:
    if not isinstance(found, Recognition) or "name" in found.spec:
        return False
    section = found.spec.get("workload")
    return isinstance(section, Mapping) and isinstance(section.get("kind"), str)


def write_recognised(folder: Path, name: str, look: WorkloadLook) -> Path:
    """Writes the spec and returns its path; leaves nothing if the spec is not valid."""
    spec = folder / f"{name}.yaml"
    section = dict(look.recognition.spec["workload"])
    if "settings" in section:
        section["settings"] = _portable(section["settings"], look.path, folder)
    tree = {"name": name, **look.recognition.spec, "workload": section}
    lines = remark(f"{look.recognition.what}, recognised by {look.recogniser}; yatt check tries it out")
    write_whole(folder, {spec: "\n".join([*lines, yaml_text(_plain(tree))])})
    return spec


def _portable(value: Any, path: Path, folder: Path) -> Any:
    """Returns settings in which the path, and what lies below it, is named relative to the spec's folder."""
    if isinstance(value, Mapping):
        return {key: _portable(each, path, folder) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(each, path, folder) for each in value]
    if isinstance(value, str | Path) and Path(value).is_absolute() and Path(value).is_relative_to(path):
        return os.path.relpath(Path(value).resolve(), folder.resolve())
    return value


def _plain(value: Any) -> Any:
    """Returns a tree as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
