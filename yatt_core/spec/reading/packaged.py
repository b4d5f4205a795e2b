"""Specs that an installed package brings: `PACKAGE:NAME` stands for the file `specs/NAME.yaml` in the package's folder.

Consumes what was given in place of a spec's file. Produces the file, and the folder that paths in its settings are relative to.
Executes nothing of a package but its parents' `__init__.py`.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from yatt_core.errors import ConfigurationError

SPECS = "specs"
_NAMED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z0-9][\w-]*)", re.ASCII)


def spec_file(given: Path, beside: Path) -> tuple[Path, Path]:
    """Returns a spec's file, and the folder that paths in its settings are relative to: its own, and `beside` for a package's.

    given: a file, relative to `beside`, or the name of a package's spec, which is none if there is such a file.

    Raises `ConfigurationError` for a package that is not there, and for one without such a spec.
    """
    file = beside / given
    named = _NAMED.fullmatch(str(given))
    if named is None or file.exists():
        return file, file.parent
    package, name = named.groups()
    known: list[str] = []
    for folder in _folders(package, given):
        found = folder / SPECS / f"{name}.yaml"
        if found.is_file():
            return found, beside
        known += [path.stem for path in (folder / SPECS).glob("*.yaml")]
    raise ConfigurationError(
        f"{given}: the package {package} has no spec {name!r}; it has {', '.join(sorted(known)) or 'none'}"
    )


def _folders(package: str, given: Path) -> list[Path]:
    try:
        found = find_spec(package)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{given}: {error}") from error
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError(
            f"{given}: there is neither such a file nor an installed package {package!r}; expected a file, or PACKAGE:NAME"
        )
    return [Path(folder) for folder in found.submodule_search_locations]
