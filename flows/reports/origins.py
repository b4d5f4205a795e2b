"""The exported checkpoints from which a run's initial model came, as far as `yatt.json` in the models' folders says.

Consumes the folder of a run's initial model, and the ledger. Produces one `Origin` after the other: the folder names the run and
the checkpoint that it was exported from, and that run began with a model of its own. Writes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.core.errors import RunNotFound
from db.ledger import Ledger
from flows.run.home import Home
from yatt_core.checkpoints.export import ORIGIN
from yatt_core.inputs.manifest import INPUTS, MANIFEST

MOST = 100
"""Maximum number of models that are followed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An exported checkpoint with whose weights a run began.

    folder: the exported model.
    known: whether the run of this id in this ledger has this checkpoint; otherwise it belongs to another ledger, or was deleted.
    """

    folder: str
    run: str
    branch: int
    iteration: int
    weights_digest: str
    spec_digest: str
    known: bool


def origins_of(ledger: Ledger, home: Home, model: str) -> tuple[Origin, ...]:
    """Returns the origins of a run's initial model, the nearest first; empty for a model that is no export.

    model: the model's folder, as the run's inputs name it.
    """
    found: list[Origin] = []
    seen: set[str] = set()
    while model and Path(model).is_absolute() and model not in seen and len(found) < MOST:
        seen.add(model)
        origin = _origin(ledger, Path(model))
        if origin is None:
            break
        found.append(origin)
        model = _model_of(home, origin.run) if origin.known else ""
    return tuple(found)


def _origin(ledger: Ledger, folder: Path) -> Origin | None:
    said = _document(folder / ORIGIN)
    try:
        run = str(said["run"])
        weights = str(said["weights_digest"])
        branch = int(said["branch"])
        iteration = int(said["iteration"])
    except (KeyError, TypeError, ValueError):
        return None
    return Origin(
        folder=str(folder),
        run=run,
        branch=branch,
        iteration=iteration,
        weights_digest=weights,
        spec_digest=str(said.get("spec_digest", "")),
        known=_has(ledger=ledger, run=run, branch=branch, iteration=iteration, weights=weights),
    )


def _has(ledger: Ledger, run: str, branch: int, iteration: int, weights: str) -> bool:
    """Returns True if a run has, or had, a checkpoint of these weights."""
    try:
        ledger.runs.find(run)
    except RunNotFound:
        return False
    rows = ledger.records.own_checkpoints(run, None)
    return any((row.branch, row.iteration, row.weights_digest) == (branch, iteration, weights) for row in rows)


def _model_of(home: Home, run: str) -> str:
    """Returns the folder of the model with which a run began; empty if its inputs are gone."""
    return str(_document(home.run_folder(run) / INPUTS / MANIFEST).get("model_path", ""))


def _document(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; an empty one if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
