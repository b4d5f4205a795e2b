"""Disables one protection at a time, in a copy of the tree, and checks whether the tests notice.

`python -m tests.sabotage.run [NAME...]` runs the test named in each patch, first without the patch, when it must pass,
then with it, when it must fail. Progress goes to standard error; the last line is one JSON object: sabotages,
sabotages_missed, and the names of those missed. It is an error if a patch does not apply or its test fails without it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sabotage.patch import ROOT, Sabotage, all_sabotages

PASSED = 0
FAILED = 1
SECONDS = 600


def main() -> int:
    wanted = sys.argv[1:]
    sabotages = [sabotage for sabotage in all_sabotages() if not wanted or sabotage.file.stem in wanted]
    folder = Path(tempfile.mkdtemp(prefix="sabotage-"))
    try:
        tree = copy_tree(folder / "tree")
        missed = [sabotage.file.stem for sabotage in sabotages if not noticed(sabotage, tree)]
    finally:
        shutil.rmtree(folder)
    told = {"sabotages": len(sabotages), "sabotages_missed": len(missed), "missed": missed}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if missed else 0


def copy_tree(target: Path) -> Path:
    """Copies the files of the working tree that git tracks or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def noticed(sabotage: Sabotage, tree: Path) -> bool:
    """Returns whether the test fails with the patch; raises `SystemExit` if it fails without it."""
    code, said = run_test(sabotage, tree)
    if code != PASSED:
        raise SystemExit(f"{sabotage.test} fails without the patch (exit code {code}):\n{said}")
    applied = sabotage.apply(tree)
    if applied.returncode:
        raise SystemExit(f"{sabotage.file} does not apply: {applied.stderr}")
    try:
        code, said = run_test(sabotage, tree)
    finally:
        sabotage.apply(tree, "--reverse")
    if code not in (PASSED, FAILED):
        raise SystemExit(f"{sabotage.test} cannot be run with {sabotage.file.name} (exit code {code}):\n{said}")
    sys.stderr.write(f"{sabotage.file.stem}: {'noticed' if code == FAILED else 'MISSED'}\n")
    return code == FAILED


def run_test(sabotage: Sabotage, tree: Path) -> tuple[int, str]:
    """Returns pytest's exit code and the end of its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"--basetemp={tree.parent / 'pytest'}", sabotage.test]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    return ran.returncode, ran.stdout[-3000:] + ran.stderr[-1000:]


if __name__ == "__main__":
    sys.exit(main())
