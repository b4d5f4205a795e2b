"""The program `yatt`, also started by `python -m yatt`."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs a command of the command line and returns its exit code."""
    from ops.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
