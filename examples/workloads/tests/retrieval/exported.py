"""A small retriever that a run has trained, exported."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from examples.workloads.tests.retrieval.ranks import SMALL
from tests.workloads.in_process import OwnRun
from yatt_workloads.retrieval.retriever import export_retriever

SPEC = Path(__file__).parents[2] / "specs" / "retrieval.yaml"


def exported_retriever(folder: Path) -> tuple[Path, OwnRun]:
    """Returns the folder of the retriever of a run's last checkpoint, and the run."""
    torch.set_num_threads(1)
    settings = json.dumps({**SMALL, "method": "self"})
    changes = ("iterations=4", "checkpoints.every=4", f"workload.settings={settings}")
    run = OwnRun.of(folder / "home", SPEC, *changes)
    run.drive()
    (checkpoint,) = (path for path in (run.folder / "checkpoints").iterdir() if "i000004" in path.name)
    export_retriever(run.folder / "inputs", checkpoint, folder / "index")
    return folder / "index", run
