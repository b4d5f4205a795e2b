"""Builds the wheel, in which `flows`, `db` and `ops` are `yatt.flows`, `yatt.db` and `yatt.ops`.

docs/decisions/0015-installed-names.md has the reasons. An editable installation keeps the repository's folders; there
`yatt/checkout.py` does the same at import.
"""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

RENAMING = runpy.run_path(str(Path(__file__).parent / "yatt" / "renaming.py"))
CLAIMED = (RENAMING["ABOVE"], "yatt_core")


class BuildBelowYatt(build_py):
    """Moves the parts below `yatt` and renames them in every import."""

    def run(self) -> None:
        """Builds the packages."""
        super().run()
        if self.editable_mode:
            return
        library = Path(self.build_lib)
        package = library / RENAMING["ABOVE"]
        (package / "checkout.py").unlink()
        for part in RENAMING["PARTS"]:
            shutil.rmtree(package / part, ignore_errors=True)  # of an earlier build
            shutil.move(library / part, package / part)
        for file in package.rglob("*.py"):
            file.write_text(RENAMING["renamed"](file.read_text(encoding="utf-8")), encoding="utf-8")


class ClaimedNames(egg_info):
    """Writes down the top-level names that the wheel claims."""

    def run(self) -> None:
        """Writes the metadata."""
        super().run()
        (Path(self.egg_info) / "top_level.txt").write_text("".join(f"{name}\n" for name in CLAIMED))


setup(cmdclass={"build_py": BuildBelowYatt, "egg_info": ClaimedNames})
