"""Finds Prometheus's own checker of rules: an installed one, else that of Debian's package, unpacked into a folder.

Nothing is installed. If neither is available, the error gives the reason.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PACKAGE = "prometheus"


class NoPromtool(Exception):
    """Raised if promtool is not available; the text gives the reason."""


def find_promtool(folder: Path) -> Path:
    """Returns the program. folder: where the package is unpacked if it must be fetched. Raises `NoPromtool`."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed)
    for command in ("apt-get", "dpkg"):
        if shutil.which(command) is None:
            raise NoPromtool(
                f"promtool is not installed, and without {command} Debian's package {PACKAGE} cannot be fetched"
            )
    fetched = subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, capture_output=True, text=True)
    packages = list(folder.glob(f"{PACKAGE}_*.deb"))
    if fetched.returncode or not packages:
        raise NoPromtool(
            f"promtool is not installed, and Debian's package {PACKAGE} cannot be fetched: {fetched.stderr[-300:]}"
        )
    subprocess.run(["dpkg", "-x", packages[0], folder / "unpacked"], check=True, capture_output=True)
    return folder / "unpacked" / "usr" / "bin" / "promtool"
