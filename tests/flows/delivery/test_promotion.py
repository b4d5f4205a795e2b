"""A promoted checkpoint survives the pruning of a run that continues, and MLflow is updated meanwhile."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from flows.branching.branches import revise
from flows.delivery.registry import registered_model
from ops.integrations.promotion import promote
from tests.flows.tools import Driver
from yatt_core.checkpoints.verify import verify_checkpoint

pytestmark = pytest.mark.verify


def test_a_promoted_checkpoint_is_kept_while_the_run_continues(driver: Driver) -> None:
    run = driver.create("virtual.yaml", "name=promoted", "iterations=4", "checkpoints.keep=1")
    driver.drive(run)
    promote(driver.home, run, "champion", 4, by="ann", why="the newest")
    revise(driver.home, run, ["iterations=8"])
    driver.drive(run)
    folder = driver.home.run_folder(run)
    client = MlflowClient(driver.home.tracking_uri)
    with driver.ledger() as ledger:
        kept = {row.iteration: row for row in ledger.records.checkpoints(run)}
        assert ledger.outbox.counts(run)[0] == 0
        assert ledger.events.verify(run) is None
    assert sorted(kept) == [0, 4, 8]
    for row in kept.values():
        verify_checkpoint(folder, row.folder, row.manifest_sha256)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == sorted(
        row.folder.rpartition("/")[2] for row in kept.values()
    )
    model = registered_model("promoted")
    versions = client.search_model_versions(f"name = '{model}'")
    states = {int(version.tags["yatt.iteration"]): version.tags["yatt.state"] for version in versions}
    assert len(versions) == 5 and states == {0: "kept", 3: "pruned", 4: "kept", 6: "pruned", 8: "kept"}
    assert client.get_model_version_by_alias(model, "champion").tags["yatt.iteration"] == "4"
