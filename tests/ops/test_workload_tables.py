"""Tables of a workload of one's own: in words on the pages and in commands, kept with the run, and plotted in MLflow."""

from __future__ import annotations

from pathlib import Path

import torch
from fastapi.testclient import TestClient

from db.core.holder import this_process
from db.write.outbox import MLFLOW
from flows.phases.evaluation_tables import tables_of
from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.table_pictures import figure_of
from tests.ops.conftest import Yatt
from tests.ops.integrations.test_mlflow_tracker import created, row
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.workloads.contract import Listing

SPEC = ROOT / "tests" / "workloads" / "counting.yaml"
TELLING = ("workload.kind=tests.workloads.counting:Telling", "tracking.enabled=true")


def test_they_are_shown_kept_and_delivered(home: Home, yatt: Yatt) -> None:
    torch.set_num_threads(1)
    own = OwnRun.of(home.folder, SPEC, *TELLING)
    own.drive()
    assert tables_of(own.folder, 0, 2)["by_k"] == Listing(("k", "share"), ((1, 0.25), (2, 0.5)))
    assert set(tables_of(own.folder, 0, 0)) == {"by_k", "by_kind"} and tables_of(own.folder, 0, 1) == {}
    found = yatt("rollouts", own.run, "--iteration", "2", "-o", "json").document["tables"]
    assert found["in words"]["rows"][0][0] == "place 0" and found["evaluation: by kind"]["columns"] == ["kind", "share"]
    assert "place 6" in yatt("rollouts", own.run, "--iteration", "1").out
    with TestClient(create_app(own.home), base_url="http://127.0.0.1:8686") as client:
        page = client.get(f"/runs/{own.run}/rollouts", params={"iteration": 2}).text
        assert "place 6" in page and "evaluation: by k" in page
        assert "evaluation: by k" not in client.get(f"/runs/{own.run}/rollouts", params={"iteration": 1}).text
    with own.ledger() as ledger:
        fence = ledger.leases.acquire(own.run, this_process(), 60, lambda holder: True)
        rows = [each for each in ledger.outbox.claim(fence, 1000, MLFLOW) if each.kind == "table"]
    told = {(each.payload["name"], each.payload["iteration"]) for each in rows}
    assert told == {(name, iteration) for name in ("by_k", "by_kind") for iteration in (0, 2, 4)}
    assert all((own.folder / each.payload["path"]).is_file() for each in rows)


def test_mlflow_has_them_by_iteration_and_as_pictures(tmp_path: Path) -> None:
    tracker = MlflowTracker(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    run = created(tracker, "tables")
    folder = tmp_path / "toy-1"
    folder.mkdir()
    for iteration in (2, 4):
        (folder / f"{iteration}.json").write_text(f'{{"columns": ["k", "share"], "data": [[1, 0.{iteration}]]}}')
        body = {"name": "by_k", "path": f"{iteration}.json", "iteration": iteration}
        for _ in range(2):
            tracker.deliver([row("table", body, run, f"t{iteration}")])
    client = tracker._client
    assert [each.path for each in client.list_artifacts(run, "evaluation/by_k")] == [
        f"evaluation/by_k/00000{iteration}.{ending}" for iteration in (2, 4) for ending in ("json", "png")
    ]
    newest = Path(client.download_artifacts(run, "evaluation/by_k.json", str(tmp_path)))
    assert "0.4" in newest.read_text()
    assert "evaluation/by_k.json" in client.get_run(run).data.tags["mlflow.loggedArtifacts"]


def test_pictures_are_drawn_of_what_has_numbers() -> None:
    curve = figure_of(Listing(("k", "dev", "words"), ((1, 0.5, "a"), (2, 0.75, "b"))), "recall")
    assert curve is not None
    (axes,) = curve.axes
    (line,) = axes.lines
    assert list(line.get_ydata()) == [0.5, 0.75] and line.get_label() == "dev"
    bars = figure_of(Listing(("class", "valid", "test"), (("a", 0.5, None), ("b", 1.0, 0.25))), "accuracy")
    assert bars is not None and [patch.get_height() for patch in bars.axes[0].patches][:2] == [0.5, 1.0]
    assert figure_of(Listing(("query", "found"), (("a", "b"),)), "searches") is None
    assert figure_of(Listing(("k", "dev"), ()), "empty") is None
