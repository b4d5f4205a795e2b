"""What a job reads, by digest: its settings, the specs and files behind them, and what earlier jobs produced.

Consumes a job, and the outputs of the jobs that it needs. Two jobs with the same inputs have the same key, in whatever folder
earlier jobs put their models, so that a job is skipped if it was done before on the same inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.pipelines.references import referenced, resolved
from flows.pipelines.spec import PipelineSpec, SoupJob, SpecJob, TrainJob
from flows.soups.spec import load_soup
from yatt_core.digests import json_digest, path_digest
from yatt_core.errors import DataError
from yatt_core.evaluation.suites import load_suite
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.reading.documents import FILE_KEYS

Outputs = Mapping[str, Any]
DIGEST = "digest"
"""The output that stands for what a job produced, wherever that lies."""


def overrides_of(job: SpecJob, outputs: Mapping[str, Outputs]) -> list[str]:
    """Returns the changes to a job's spec, with what earlier jobs produced in place of references."""
    return [resolved(text, outputs) for text in job.set]


def run_spec(folder: Path, job: TrainJob, outputs: Mapping[str, Outputs]) -> RunSpec:
    """Returns the spec of a job's run. Raises `ConfigurationError` with a line per mistake."""
    return load_spec(folder / job.spec, overrides_of(job, outputs), with_files=True)


def inputs_of(spec: PipelineSpec, folder: Path, name: str, outputs: Mapping[str, Outputs]) -> dict[str, str]:
    """Returns the digests of what a job reads, by what it is.

    folder: what paths in the pipeline's file are relative to.
    outputs: those of the jobs that it needs.

    Raises `ConfigurationError`; `DataError` for a file that cannot be read.
    """
    job = spec.jobs[name]
    found = {"job": json_digest(job.model_dump(mode="json", exclude={"needs", "spec"}))}
    for each in sorted(spec.needs(name)):
        found[f"jobs.{each}"] = str(outputs[each][DIGEST])
    if isinstance(job, SoupJob):
        soup, run = load_soup(folder / job.spec, overrides_of(job, outputs))
        found["soup"] = json_digest(soup.model_dump(mode="json", exclude={"base"}))
        found |= _digests_of_spec(run, job, outputs)
    elif isinstance(job, TrainJob):
        found |= _digests_of_spec(run_spec(folder, job, outputs), job, outputs)
    if getattr(job, "suite", None):
        found |= _digests_of_suite(folder / str(getattr(job, "suite", "")))
    return found


def _digests_of_spec(spec: RunSpec, job: SpecJob, outputs: Mapping[str, Outputs]) -> dict[str, str]:
    """Returns the digest of a run's spec without the places of earlier jobs' results, and of each file that it names."""
    places = {
        str(outputs[other][product]): f"{other}.{product}" for text in job.set for other, product in referenced(text)
    }
    tree = _without(spec.model_dump(mode="json"), places)
    files = {f"file {path}": _digest_of(path) for path in sorted(set(_files(tree)))}
    return {"spec": json_digest(tree), **files}


def _digests_of_suite(path: Path) -> dict[str, str]:
    """Returns the digest of a suite's file, and of each file and folder that it names."""
    files = sorted(set(_files(load_suite(path).model_dump(mode="json"))))
    return {"suite": _digest_of(path), **{f"file {each}": _digest_of(each) for each in files}}


def _digest_of(path: Path) -> str:
    """Returns the digest of a file or folder. Raises `DataError` if it cannot be read."""
    try:
        return path_digest(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _without(tree: Any, places: Mapping[str, str]) -> Any:
    """Returns a tree in which the places of results are replaced by the names of what produced them."""
    if isinstance(tree, Mapping):
        return {key: _without(value, places) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without(value, places) for value in tree]
    return places.get(tree, tree) if isinstance(tree, str) else tree


def _files(tree: Any) -> Iterator[Path]:
    """Yields the files and folders that a spec names and that exist."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key in FILE_KEYS and isinstance(value, str):
                path = Path(value.partition(".py:")[0] + ".py" if ".py:" in value else value)
                if path.is_absolute() and path.exists():
                    yield path
            else:
                yield from _files(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _files(value)
