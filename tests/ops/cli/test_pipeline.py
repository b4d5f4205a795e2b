"""`yatt pipeline` on simulated runs: approved over HTTP, it is resumed to one champion, and then does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.run.home import Home
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


def test_mistakes_cost_nothing(yatt: Yatt, plant: Plant) -> None:
    plant.write({"a": JOBS["sft"] | {"needs": ["b"]}})
    answer = yatt("pipeline", "run", str(plant.file))
    assert answer.code == 2 and "needs 'b', which is no job" in answer.err and not plant.home.folder.exists()
    answer = yatt("pipeline", "show", "line-7")
    assert answer.code == 2
