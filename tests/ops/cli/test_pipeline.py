"""`yatt pipeline` on simulated runs: approved over HTTP, it is resumed to one champion, and then does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.run.home import Home
from flows.schedule.pipeline_polling import deploy_pipeline, poll_pipeline
from ops.dashboard.app import create_app
from ops.people.roles import Role
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, check_page, words
from tests.flows.pipelines.conftest import inputs
from tests.flows.pipelines.support import JOBS, Plant
from tests.ops.conftest import Yatt

__all__ = ["inputs"]


@pytest.fixture
def plant(tmp_path: Path, inputs: Path) -> Plant:
    gate = JOBS["gate"] | {"approval": {}}
    return Plant.of(tmp_path / "plant", inputs, JOBS | {"gate": gate})


@pytest.fixture
def home(plant: Plant) -> Home:
    return plant.home


def test_it_is_approved_over_http_resumed_to_one_champion_and_run_again_does_nothing(
    yatt: Yatt, plant: Plant, home: Home
) -> None:
    assert plant.run() == ("line-1", "waiting")
    app = create_app(home)
    with TestClient(app, base_url=ORIGIN) as client:
        assert "waits for approval 1" in words(check_page(client.get("/pipelines/line-1", headers=BROWSER).text))
        assert client.get("/pipelines/other-1", headers=BROWSER).status_code == 404
        header = {"Authorization": f"Bearer {app.state.context.tokens.create('alice', Role.ADMIN)}"}
        body = {"decision": "approve", "why": "it learns", "resume": True}
        assert client.post("/api/v1/approvals/1", json=body, headers=header).json()["driver"] is None
    done = yatt("pipeline", "resume", "latest", "-o", "json")
    assert done.code == 0 and done.document["state"] == "finished"
    with Ledger.open(home.ledger) as ledger:
        assert ledger.aliases.pointing("brew-1")["champion"].iteration == 3
    again = yatt("pipeline", "run", str(plant.file), "-o", "json").document
    assert again["pipeline"] == "line-2" and {job["state"] for job in again["jobs"]} == {"skipped"}
    listed = yatt("pipeline", "list", "-o", "json").document["pipelines"]
    assert [each["pipeline"] for each in listed] == ["line-2", "line-1"]
    assert "champion" in yatt("pipeline", "show", "line-1").out


def test_an_approval_says_how_to_go_on(yatt: Yatt, plant: Plant) -> None:
    plant.run()
    assert "`yatt pipeline resume line-1` continues the pipeline" in yatt("approve", "1", "--why", "it learns").out


def test_a_pipeline_is_deployed_only_with_triggers_and_sound_intervals(yatt: Yatt, plant: Plant) -> None:
    for options, told in [
        ((), "triggers: missing"),
        (("--every", "1s"), "--every: 1s is too short; expected at least 10s"),
    ]:
        answer = yatt("pipeline", "deploy", str(plant.file), *options)
        assert answer.code == 2 and told in answer.err and not plant.home.folder.exists()


def test_why_a_pipeline_began_and_runs_again_is_told(yatt: Yatt, plant: Plant, home: Home) -> None:
    rows = plant.file.parent / "rows"
    rows.mkdir()
    plant.write(JOBS, triggers=[{"kind": "data", "path": "rows"}])
    home.folder.mkdir()
    with Ledger.open(home.ledger) as ledger:
        deploy_pipeline(ledger, plant.file, "ann")
        (rows / "a").write_text("1")
        assert poll_pipeline(ledger, "line").pipeline == "line-1"
        plant.run()
        (rows / "a").write_text("2")
        assert poll_pipeline(ledger, "line").pipeline is None
    shown = yatt("pipeline", "show", "line-1")
    assert (
        f"began because: data {rows} changed" in shown.out and f"runs again because: data {rows} changed" in shown.out
    )
    (listed,) = yatt("pipeline", "list", "-o", "json").document["pipelines"]
    assert len(listed["began_by"]) == len(listed["remembered"]) == 1
    assert "began because" in yatt("pipeline", "list").out
    with TestClient(create_app(home), base_url=ORIGIN) as client:
        for page in ("/pipelines", "/pipelines/line-1"):
            assert f"data {rows} changed" in words(check_page(client.get(page, headers=BROWSER).text))


def test_mistakes_cost_nothing(yatt: Yatt, plant: Plant) -> None:
    plant.write({"a": JOBS["sft"] | {"needs": ["b"]}})
    answer = yatt("pipeline", "run", str(plant.file))
    assert answer.code == 2 and "needs 'b', which is not a job" in answer.err and not plant.home.folder.exists()
    answer = yatt("pipeline", "show", "line-7")
    assert answer.code == 2
