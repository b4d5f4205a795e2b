"""What commands and the dashboard say of a run that trains something other than a language model."""

from __future__ import annotations

import pytest
import torch
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.dashboard.app import create_app
from tests.ops.conftest import Yatt
from tests.services import ROOT
from tests.workloads.in_process import OwnRun

SPEC = ROOT / "tests" / "workloads" / "counting.yaml"


@pytest.fixture
def run(home: Home) -> OwnRun:
    torch.set_num_threads(1)
    own = OwnRun.of(home.folder, SPEC)
    own.drive()
    return own


def test_a_workload_is_tried_before_it_starts(yatt: Yatt) -> None:
    checked = yatt("check", str(SPEC), "-o", "json").document["workload"]
    assert checked["kind"] == "tests.workloads.counting:Counting" and checked["files"] == 1
    assert checked["columns"] == {"numbers": "float64 [7]"} and checked["figures"] == {"evaluation/mean": 0.0}
    answer = yatt("check", str(SPEC), "--set", "workload.settings={broken: draw}")
    assert answer.code == 2 and "draw: column 'numbers' is list; expected a numpy array of numbers" in answer.err
    answer = yatt("plan", str(SPEC))
    assert (
        answer.code == 2
        and "has a model of its own, whose shape is not known, so that nothing can be planned" in answer.err
    )
    answer = yatt("check", str(SPEC), "--set", "objective={kind: sft}")
    assert (
        answer.code == 2 and "objective: the workload tests.workloads.counting:Counting has an objective" in answer.err
    )


def test_commands_and_pages_show_what_it_has(run: OwnRun, yatt: Yatt) -> None:
    shown = yatt("show", run.run, "-o", "json").document
    assert {row["key"] for row in shown["curves"]} == {"evaluation/mean", "loss"}
    columns = yatt("rollouts", run.run, "--iteration", "2", "-o", "json").document["columns"]
    assert [(each["name"], each["type"], each["shape"]) for each in columns] == [("numbers", "float64", [7])]
    measured = yatt("evaluate", run.run, "--iteration", "2", "-o", "json").document
    assert measured["workload"] == "tests.workloads.counting:Counting" and measured["mean"] > 0
    with run.ledger() as ledger:
        assert dict(ledger.metrics.history(run.run, "evaluation/mean"))[2] == measured["mean"]
    for words in (("export", run.run), ("evaluate", run.run, "--greedy")):
        answer = yatt(*words)
        assert answer.code == 2 and "workload" in answer.err
    with TestClient(create_app(run.home), base_url="http://127.0.0.1:8686") as client:
        page = client.get(f"/runs/{run.run}/rollouts", params={"iteration": 2})
        assert page.status_code == 200 and "What iteration 2 learnt from" in page.text and "numbers" in page.text
        missing = client.get(f"/runs/{run.run}/rollouts", params={"iteration": 9})
        assert "no columns of iteration 9 are recorded" in missing.text
        assert "evaluation/mean" in client.get(f"/runs/{run.run}").text


def test_its_settings_stay_as_they_are(run: OwnRun, yatt: Yatt) -> None:
    answer = yatt("resume", run.run, "--set", "workload.settings={at: 1}", "--set", "iterations=5")
    assert answer.code == 2 and "workload.settings cannot change during a run" in answer.err
