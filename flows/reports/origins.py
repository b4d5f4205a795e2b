"""The checkpoints from which a run's initial model came, as far as `yatt.json` in the models' folders says.

Consumes the folder of a run's initial model, and the ledger. Produces one `Origin` after the other: the folder names the run and
the checkpoint that it was exported from, and that run began with a model of its own. A workload begins with a checkpoint itself,
of which its inputs' manifest says whose it is. Writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db.core.errors import RunNotFound
from db.ledger import Ledger
from flows.run.home import Home
from yatt_core.checkpoints.export import ORIGIN
from yatt_core.inputs.manifest import INPUTS, MANIFEST, START

MOST = 100
"""Maximum number of models that are followed."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint with whose weights a run began.

    folder: the exported model, or the checkpoint that a workload began with.
    known: whether the run of this id in this ledger has this checkpoint; otherwise it belongs to another ledger, or was deleted.
    """

    folder: str
    run: str
    branch: int
    iteration: int
    weights_digest: str
    spec_digest: str
    known: bool


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What a run began with.

    folder: of an exported model or of a checkpoint; empty if there is none.
    said: what identifies the checkpoint; empty for a model that is no export.
    """

    folder: str
    said: Mapping[str, Any]


def origins_of(ledger: Ledger, home: Home, inputs: Mapping[str, Any]) -> tuple[Origin, ...]:
    """Returns the origins of a run's initial weights, the nearest first; empty for a model that is no export.

    inputs: the manifest of the run's inputs.
    """
    found: list[Origin] = []
    seen: set[str] = set()
    began = _beginning(inputs)
    while began.folder and Path(began.folder).is_absolute() and began.folder not in seen and len(found) < MOST:
        seen.add(began.folder)
        origin = _origin(ledger, began)
        if origin is None:
            break
        found.append(origin)
        began = _beginning(inputs_manifest(home, origin.run) if origin.known else {})
    return tuple(found)


def inputs_manifest(home: Home, run: str) -> Mapping[str, Any]:
    """Returns the manifest of a run's inputs; an empty one if they are gone."""
    return _document(home.run_folder(run) / INPUTS / MANIFEST)


def _beginning(inputs: Mapping[str, Any]) -> _Beginning:
    start = inputs.get(START)
    if isinstance(start, Mapping):
        return _Beginning(str(start.get("path", "")), start)
    model = str(inputs.get("model_path") or "")
    return _Beginning(model, _document(Path(model) / ORIGIN) if model else {})


def _origin(ledger: Ledger, began: _Beginning) -> Origin | None:
    said = began.said
    try:
        run = str(said["run"])
        weights = str(said["weights_digest"])
        branch = int(said["branch"])
        iteration = int(said["iteration"])
    except (KeyError, TypeError, ValueError):
        return None
    return Origin(
        folder=began.folder,
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


def _document(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; an empty one if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
