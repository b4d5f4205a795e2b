"""A sabotage: a patch that disables one protection of the product, and the test that must notice.

A file in `patches/` begins with `Protection:` and `Test:` lines, followed by a unified diff against the repository.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "patches"
ROOT = FOLDER.parent.parent.parent


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A patch and its test.

    protection: the protection that the patch disables.
    test: node id of the test that must fail.
    """

    file: Path
    protection: str
    test: str

    @classmethod
    def read(cls, file: Path) -> Sabotage:
        """Reads a patch file. Raises `ValueError` if its header is missing."""
        head = file.read_text().partition("\n--- ")[0]
        fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        if not {"Protection", "Test"} <= fields.keys():
            raise ValueError(f"{file}: must begin with lines `Protection: ...` and `Test: ...`")
        return cls(file, fields["Protection"], fields["Test"])

    def apply(self, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs `git apply` in a tree that need not be a repository. options: `--check`, `--reverse`."""
        return subprocess.run(
            ["git", "apply", *options, str(self.file)], cwd=tree, capture_output=True, text=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "GIT_DIR": str(tree / ".no-git")},
        )  # fmt: skip


def all_sabotages() -> list[Sabotage]:
    """Returns every patch, sorted by name."""
    return [Sabotage.read(file) for file in sorted(FOLDER.glob("*.patch"))]
