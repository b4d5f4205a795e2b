"""The outbox row that tells the tracker which data a run learns from and is evaluated on.

Consumes the manifest of the run's inputs; produces names, digests, sizes and places of the prompt files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from db.write.outbox import OutboxEntry
from flows.delivery.outbox import row_ids
from flows.run.trackers import in_mlflow
from yatt_core.inputs.manifest import HELD_OUT, INPUTS, PROBE, TRAIN, read_manifest
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.data import ReasoningGymSource, Source

LONGEST_NAME = 200
USES = {TRAIN: "training", HELD_OUT: "evaluation", PROBE: "validation"}
"""What each prompt file is used for; the probe determines when SFT stops."""


def dataset_entries(run: str, branch: int, spec: RunSpec, folder: Path, at_ms: int) -> list[OutboxEntry]:
    """Returns the rows that name the run's data; empty if MLflow is not one of its trackers.

    folder: the run's folder, whose inputs have been built.

    Raises what `read_manifest` raises.
    """
    if not in_mlflow(spec):
        return []
    body = {"datasets": _datasets(spec, folder)}
    return [OutboxEntry(key, "datasets", body, at_ms) for key in row_ids(run, branch, "datasets")]


def _datasets(spec: RunSpec, folder: Path) -> list[dict[str, Any]]:
    manifest = read_manifest(folder / INPUTS, spec)
    sizes = {
        TRAIN: sum(manifest["train_sizes"]),
        HELD_OUT: manifest["held_out_prompts"],
        PROBE: manifest["probe_prompts"],
    }
    name = " + ".join(_name(source) for source in spec.data.sources)[:LONGEST_NAME]
    return [
        {
            "name": name,
            "digest": manifest["files"][file],
            "use": USES[file],
            "rows": sizes[file],
            "path": str(folder / INPUTS / file),
        }
        for file in USES
        if sizes[file]
    ]


def _name(source: Source) -> str:
    """Returns the name of a source: its task, or its file or folder without the folders above it."""
    return source.task if isinstance(source, ReasoningGymSource) else Path(source.path).name
