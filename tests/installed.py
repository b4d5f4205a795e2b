"""Installs the built wheel into an environment of its own, which has the libraries of the tests' environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.services import ROOT

LIBRARY = "from {module} import {name}; {name}()"
PROGRAMS = {"ray": ("ray.scripts.scripts", "main"), "prefect": ("prefect.cli", "app")}
"""Commands of libraries by their entry points: those of the tests' environment would start its interpreter."""


def installed_wheel(folder: Path, beside: Sequence[str] = ()) -> Path:
    """Returns the folder of an environment's programs. YATT is there from its wheel, not from the checkout.

    beside: folders of the checkout with further packages, which are built and installed in the same way.
    """
    source = folder / "source"
    environment = folder / "environment"
    _run("git", "clone", "-q", ROOT, source, cwd=folder)
    for place in (".", *beside):
        built = source / place
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, built, cwd=folder)
    wheels = sorted(folder.glob("*.whl"))
    venv.create(environment, with_pip=True, symlinks=True)
    programs = environment / "bin"
    _run(programs / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", *wheels, cwd=folder)
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(_run(programs / "python", "-c", where, cwd=folder).strip())
    # Path files in that folder are not followed, so the editable install of the checkout stays invisible.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for name, (module, function) in PROGRAMS.items():
        code = LIBRARY.format(module=module, name=function)
        program(programs / name, f"#!{programs / 'python'}\n{code}\n")
    found = _run(programs / "python", "-c", "import yatt_core; print(yatt_core.__file__)", cwd=folder).strip()
    assert Path(found).is_relative_to(site), f"{found} is not the wheel's"
    return programs


def program(path: Path, text: str) -> None:
    """Writes an executable file."""
    path.write_text(text)
    path.chmod(0o755)


def outside(programs: Path, home: Path) -> dict[str, str]:
    """Returns an environment that knows the installation and nothing of the checkout or of the session's services."""
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "YATT_HOME": str(home / "runs"),
    }


def _run(*command: str | Path, cwd: Path) -> str:
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name the checkout
    done = subprocess.run(command, cwd=cwd, env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
