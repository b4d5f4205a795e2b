"""Where Python finds modules in a run's actors, which work in folders other than the command's.

Consumes this process's environment and current folder. Produces the environment of services, with absolute entries of
PYTHONPATH, and the places where Ray's workers will find modules by name, asked of a child process that sees what they see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from yatt_core.errors import InfrastructureError

PYTHONPATH = "PYTHONPATH"
SECONDS = 60.0
"""Time limit for looking up modules, which imports the packages that contain them."""
LOOK_UP = """
import importlib.util, json, sys
sys.path[:0] = json.loads(sys.argv[1])
found = {}
for name in json.loads(sys.argv[2]):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    found[name] = None if spec is None else spec.origin
sys.stdout = sys.__stdout__
print("\\n" + json.dumps(found))
"""


def absolute_entries(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Returns an environment in which the entries of PYTHONPATH mean the same from any current folder.

    folder: the current folder, which relative entries and empty ones refer to.
    """
    changed = dict(environment)
    if changed.get(PYTHONPATH):
        entries = changed[PYTHONPATH].split(os.pathsep)
        changed[PYTHONPATH] = os.pathsep.join(str(folder / entry) for entry in entries)
    return changed


def folders_of_the_command() -> list[str]:
    """Returns the folders that Ray adds to its workers' path from the process that connects, beside their PYTHONPATH."""
    script = str(Path(sys.argv[0]).resolve().parent)
    return [str(Path.cwd()), *([script] if script in sys.path else [])]


def modules_in_actors(names: Collection[str], further: Sequence[str]) -> dict[str, str | None]:
    """Returns the file of each module as Ray's workers will find it; None for one that they will not find.

    names: dotted names; packages above a name are imported.
    further: folders in front of the workers' own path.

    Raises `InfrastructureError` if the child process does not answer.
    """
    given = [json.dumps(list(further)), json.dumps(sorted(names))]
    with tempfile.TemporaryDirectory(prefix="yatt-look-up-") as elsewhere:
        try:
            answer = subprocess.run(
                [sys.executable, "-P", "-c", LOOK_UP, *given],
                env=absolute_entries(os.environ, Path.cwd()),
                cwd=elsewhere,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise InfrastructureError(f"cannot look up modules as actors will find them: {error}") from error
    found: dict[str, str | None] = json.loads(answer.stdout.rpartition("\n")[0].rpartition("\n")[2])
    return found
