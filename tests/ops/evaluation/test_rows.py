"""`yatt evaluate` on runs that learn from rows: the figures are those of the run's own trainer, and wrong options are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.run.home import Home
from tests.engines.train.preferred import KINDS, Trained, preferred_spec
from tests.ops.cli.test_branches import refused
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.evaluation.estimators import wilson_interval
from yatt_core.keys import checkpoint_folder


def trained_run(home: Home, folder: Path, kind: str) -> tuple[str, Trained]:
    """Returns a run with a checkpoint after two updates, and the trainer that holds its weights."""
    spec = preferred_spec(folder, KINDS[kind], rows=60)
    run = seed_run(home, committed=-1, spec=spec, ends=False)
    trained = Trained(spec, home.run_folder(run))
    trained.learn(range(1, 3))
    identity = CheckpointIdentity(run, 0, 2, 1, spec.digest, "")
    name = str(checkpoint_folder(0, 2, 1))
    receipt = publish_checkpoint(home.run_folder(run), name, identity, trained.engine.freeze_state(), 1000)
    with Ledger.open(home.ledger) as ledger:
        row = CheckpointRow(run, 0, 2, 1, name, receipt.manifest_sha256, receipt.bytes, "", 0.1)
        ledger.records.checkpoint(Fence.of_run(run, 1), row)
    return run, trained


@pytest.mark.parametrize("kind", ["dpo", "sft", "reward_model"])
def test_a_checkpoint_is_measured_as_its_objective_is(yatt: Yatt, home: Home, tmp_path: Path, kind: str) -> None:
    run, trained = trained_run(home, tmp_path / "rows", kind)
    document = yatt("evaluate", run, "-o", "json").document
    expected = {name.removeprefix("evaluation/"): value for name, value in trained.evaluate().items()}
    assert {name: document[name] for name in expected} == expected
    assert (document["objective"], document["rows"], document["iteration"]) == (kind, 20, 2)
    if kind != "sft":
        bounds = wilson_interval(document["accuracy"], 20)
        assert (document["accuracy_low"], document["accuracy_high"]) == bounds
    shown = yatt("evaluate", run).out
    assert shown.startswith(f"{run}, iteration 2: ") and "20 held-out rows" in shown
    assert ("chosen" in shown) == (kind != "sft")


def test_what_does_not_go_with_rows_is_refused(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    run, trained = trained_run(home, tmp_path / "rows", "dpo")
    refused(yatt("evaluate", run, "--samples", "4"), 2, "--samples: run preferred-1 has objective.kind dpo")
    refused(yatt("evaluate", run, "--greedy"), 2, "--greedy: run preferred-1 has objective.kind dpo")
    given = ("--model", str(trained.model))
    refused(yatt("evaluate", run, *given), 2, "--model: objective.kind dpo is measured with the run's reference")


def test_a_model_folder_is_measured_without_a_reference(yatt: Yatt, home: Home, tmp_path: Path) -> None:
    run, trained = trained_run(home, tmp_path / "rows", "sft")
    trained.engine.initialise()
    document = yatt("evaluate", run, "--model", str(trained.model), "-o", "json").document
    assert document["loss"] == trained.evaluate()["evaluation/loss"]
    assert (document["model"], document["iteration"]) == (str(trained.model), None)
