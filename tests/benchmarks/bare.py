"""An environment that has only some of the installed distributions and what these require. It is made of links."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

LISTED = (
    "torch", "transformers", "numpy", "pyarrow", "pydantic", "pydantic-core", "annotated-types", "typing-inspection",
    "ruamel-yaml", "megatron-core",
)  # fmt: skip
"""What docs/gpu.md says that a machine must have."""


def closure(names: Iterable[str]) -> dict[str, Distribution]:
    """Returns distributions and all that they require without extras, by name; what is not installed here is left out."""
    found = dict[str, Distribution]()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def make_bare_environment(folder: Path, *more: str) -> Path:
    """Makes an environment with what is listed, and more; returns its Python."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for one in closure((*LISTED, *more)).values():
        for top, source in _entries(one):
            if not (site / top).exists():
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


def _entries(one: Distribution) -> Iterator[tuple[str, Path]]:
    """Yields the files and folders of a distribution that are right below site-packages."""
    root = Path(str(one.locate_file("")))
    for top in sorted({file.parts[0] for file in one.files or ()}):
        if top not in ("..", "__pycache__") and (root / top).exists():
            yield top, root / top


if __name__ == "__main__":
    sys.stdout.write(f"{make_bare_environment(Path(sys.argv[1]), *sys.argv[2:])}\n")
