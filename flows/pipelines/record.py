"""A pipeline in the ledger: how it begins. Consumes its spec; produces the row that its runner carries on."""

from __future__ import annotations

from pathlib import Path

from db.ledger import Ledger
from db.write.pipelines import NewPipeline, PipelineRow
from flows.pipelines.spec import PipelineSpec
from flows.run.home import Home
from yatt_core.digests import json_digest


def start_pipeline(home: Home, spec: PipelineSpec, folder: Path, by: str) -> PipelineRow:
    """Creates a run of a pipeline, or returns the unfinished one of the same spec.

    folder: what paths in the spec are relative to.
    by: who starts it.
    """
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        return ledger.pipelines.create(new_pipeline(spec, folder, by))


def new_pipeline(spec: PipelineSpec, folder: Path, by: str) -> NewPipeline:
    """Returns a run of a pipeline for the ledger. Its triggers are no part of it. Fields as in `start_pipeline`."""
    place = str(folder.resolve())
    document = spec.document()
    return NewPipeline(name=spec.name, digest=json_digest([document, place]), spec=document, folder=place, by=by)
