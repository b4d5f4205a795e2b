"""Looks for a Chromium for the browser tests, and installs Debian's package if that is allowed.

Consumes the machine's package manager; produces `/usr/bin/chromium`, or prints one line that says why there is none.
`make verify` runs it first; without a browser the tests are skipped and name this reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
SECONDS = 600.0


def find_chromium() -> Path | None:
    """Returns the browser of this machine, if it has one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def why_not_installable() -> str:
    """Returns why no package can be installed here; empty if one can be."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get here"
    if os.geteuid() != 0:
        return "only root may install packages"
    return ""


def install() -> str:
    """Installs the packages; returns the error in one line, or an empty string."""
    if why := why_not_installable():
        return why
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        try:
            done = subprocess.run(
                ["apt-get", "-qq", *words], env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} did not end within {SECONDS:.0f} s"
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no error output"]
            return f"apt-get {words[0]} failed: {said[-1]}"
    return "" if find_chromium() else "apt-get installed the package, but it contains no browser with a known name"


def main() -> int:
    """Prints what was found. A machine without a browser is not an error: the tests report it too."""
    problem = "" if find_chromium() else install()
    found = find_chromium()
    line = (
        f"browser tests: {found}"
        if found
        else f"browser tests will be SKIPPED, no browser could be installed: {problem}"
    )
    sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
