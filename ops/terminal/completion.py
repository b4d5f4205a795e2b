"""What the shell offers when the Tab key is pressed: runs, and spec files.

Called by the shell each time, so it imports almost nothing and reads only names of files: a run has a folder in the
home. Only a ledger on another machine is asked for its runs. An error offers nothing, since there is no place to show it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import typer

LATEST = "latest"
OFFERED = 50
_RUN = re.compile(r"[A-Za-z0-9].*-\d+")
"""The name of a run's folder; hidden folders are being written or deleted."""
_SPECS = (".yaml", ".yml")


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the newest runs whose id begins with what was typed, and `latest`."""
    home = next((each.params["home"] for each in _chain(ctx) if each.params.get("home")), None)
    names = _of_ledger() if "://" in os.environ.get("YATT_LEDGER", "") else _of_folder(home)
    return [name for name in (LATEST, *names) if name.startswith(incomplete)][:OFFERED]


def complete_spec(incomplete: str) -> list[str]:
    """Returns the spec files and folders whose path begins with what was typed."""
    folder, _, beginning = incomplete.rpartition("/")
    place = Path(f"{folder}/") if incomplete.startswith("/") or folder else Path()
    try:
        found = sorted(path for path in place.iterdir() if path.name.startswith(beginning))
    except OSError:
        return []
    shown = [path for path in found if beginning.startswith(".") or not path.name.startswith(".")]
    head = f"{folder}/" if "/" in incomplete else ""
    return [f"{head}{path.name}/" for path in shown if path.is_dir()] + [
        f"{head}{path.name}" for path in shown if path.suffix in _SPECS and path.is_file()
    ]


def _chain(context: Any) -> list[Any]:
    return [] if context is None else [context, *_chain(context.parent)]


def _of_folder(home: Path | None) -> list[str]:
    folder = Path(home or os.environ.get("YATT_HOME") or "runs")
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if _RUN.fullmatch(entry.name)]
    except OSError:
        return []
    return [name for _, name in sorted(found, reverse=True)]


def _of_ledger() -> list[str]:
    from db.core.errors import LedgerError
    from db.ledger import Ledger
    from flows.run.home import Home

    try:
        with Ledger.open(Home.locate().ledger, migrate=False) as ledger:
            return [row.id for row in ledger.runs.list()]
    except LedgerError:
        return []
