"""A user's folder with packages of the names of YATT's parts, as a user of Prefect may have."""

from __future__ import annotations

from pathlib import Path

REWARDS = """
import ops
from yatt_core.prompts.prompt import Prompt

def score(prompt: Prompt, response: str) -> float:
    return ops.score(response)
"""


def hostile_folder(folder: Path) -> Path:
    """Creates `flows/`, `db.py` and `ops/`, each with `MINE`, and a reward file that imports the user's `ops`."""
    for package in ("flows", "ops"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(f'MINE = "{package}"\n')
    (folder / "ops" / "__init__.py").write_text('MINE = "ops"\n\ndef score(text):\n    return float(len(text) % 2)\n')
    (folder / "db.py").write_text('MINE = "db"\n')
    (folder / "rewards.py").write_text(REWARDS)
    return folder
