"""The lineage of a run goes on through the exported model with which it began."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.reports.lineage import lineage_of
from flows.reports.origins import inputs_manifest, origins_of
from flows.run.home import Home
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import seed_run
from yatt_core.checkpoints.export import ORIGIN
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.inputs.manifest import INPUTS, MANIFEST, START


def seeded(home: Home, model: Path | None, weights: str) -> str:
    """Creates a run that began with a model, and has a checkpoint of iteration 2."""
    run = seed_run(home)
    inputs = home.run_folder(run) / INPUTS
    inputs.mkdir()
    (inputs / MANIFEST).write_text(json.dumps({"model_path": "model" if model is None else str(model)}))
    seed_checkpoint(home, run, 2, weights)
    return run


def exported(folder: Path, run: str, weights: str) -> Path:
    folder.mkdir(parents=True)
    identity = asdict(CheckpointIdentity(run, 0, 2, 1, "spec", weights))
    (folder / ORIGIN).write_text(json.dumps({**identity, "dtype": "float32"}))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


def test_the_exports_that_runs_began_with_are_followed(home: Home, tmp_path: Path) -> None:
    first = seeded(home, None, "w1")
    one = exported(tmp_path / "one", first, "w1")
    second = seeded(home, one, "w2")
    two = exported(tmp_path / "two", second, "w2")
    third = seeded(home, two, "w3")
    with Ledger.open(home.ledger) as ledger:
        origins = lineage_of(ledger, home, third).origins
        assert lineage_of(ledger, home, first).origins == ()
    assert [(each.run, each.iteration, each.weights_digest, each.known) for each in origins] == [
        (second, 2, "w2", True),
        (first, 2, "w1", True),
    ]
    assert [each.folder for each in origins] == [str(two), str(one)]


def test_exports_of_other_ledgers_and_other_folders(home: Home, tmp_path: Path) -> None:
    first = seeded(home, None, "w1")
    foreign = exported(tmp_path / "foreign", first, "other weights")
    plain = tmp_path / "plain"
    plain.mkdir()
    broken = exported(tmp_path / "broken", first, "w1")
    (broken / ORIGIN).write_text("[1]")
    with Ledger.open(home.ledger) as ledger:
        (origin,) = origins_of(ledger, home, {"model_path": str(foreign)})
        assert (origin.run, origin.known) == (first, False), "a run of the same name with other weights"
        for model in (str(plain), str(broken), "", "model"):
            assert origins_of(ledger, home, {"model_path": model}) == ()
        circle = exported(tmp_path / "circle", seeded(home, tmp_path / "circle", "w2"), "w2")
        assert len(origins_of(ledger, home, {"model_path": str(circle)})) == 1


def test_the_checkpoints_that_workloads_began_with_are_followed(home: Home, tmp_path: Path) -> None:
    first = seeded(home, None, "w1")
    second = seed_run(home)
    inputs = home.run_folder(second) / INPUTS
    inputs.mkdir()
    start = {"path": str(tmp_path / "checkpoint"), **asdict(CheckpointIdentity(first, 0, 2, 1, "spec", "w1"))}
    (inputs / MANIFEST).write_text(json.dumps({"model_path": "", START: start}))
    with Ledger.open(home.ledger) as ledger:
        (origin,) = origins_of(ledger, home, inputs_manifest(home, second))
    assert (origin.folder, origin.run, origin.iteration, origin.known) == (start["path"], first, 2, True)
