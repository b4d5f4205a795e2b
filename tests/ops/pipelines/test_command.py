"""`yatt pipeline` on simulated runs: approved over HTTP, it is resumed to one champion, and then does nothing."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.pipelines.checks import figure_names
from flows.pipelines.polling import deploy_pipeline, poll_pipeline
from flows.run.home import Home
from ops.dashboard.app import create_app
from ops.evaluation.answering import figures_of
from ops.people.roles import Role
from ops.queueing import child_runs
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, check_page, words
from tests.flows.pipelines.conftest import inputs
from tests.flows.pipelines.support import JOBS, Plant
from tests.flows.soups.support import Killed
from tests.ops.conftest import Yatt
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.evaluation.summary import summarise
from yatt_core.protocols.receipts import TaskResult
from yatt_core.spec.sections.evaluation import EvaluationSampling, EvaluationSpec, VoteSpec

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


def test_more_runs_at_once_than_gpus_are_refused_before_anything_is_created(
    yatt: Yatt, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_runs, "local_gpus", lambda: [("Abacus", 1)] * 2)
    answer = yatt("pipeline", "run", str(plant.file), "--at-once", "3")
    assert answer.code == 2 and "--at-once 3: this machine has 2 GPUs" in answer.err and not plant.home.folder.exists()
    plant.run()
    answer = yatt("pipeline", "resume", "latest", "--at-once", "3")
    assert answer.code == 2 and "--at-once 3: this machine has 2 GPUs" in answer.err


def test_mistakes_cost_nothing(yatt: Yatt, plant: Plant) -> None:
    plant.write({"a": JOBS["sft"] | {"needs": ["b"]}})
    answer = yatt("pipeline", "run", str(plant.file))
    assert answer.code == 2 and "needs 'b', which is not a job" in answer.err and not plant.home.folder.exists()
    answer = yatt("pipeline", "show", "line-7")
    assert answer.code == 2


def test_a_pipeline_that_nobody_drives_any_more_is_interrupted(yatt: Yatt, plant: Plant, home: Home) -> None:
    plant.killed_at = 3
    with pytest.raises(Killed):
        plant.run()
    hint = "`yatt pipeline resume line-1` goes on"
    for words_of in (["show", "line-1"], ["list"]):
        said = " ".join(yatt("pipeline", *words_of).out.split())
        assert "interrupted" in said and hint in said
    shown = yatt("pipeline", "show", "line-1", "-o", "json").document
    assert shown["state"] == "running" and shown["interrupted"]
    with TestClient(create_app(home), base_url=ORIGIN) as client:
        for page in ("/pipelines", "/pipelines/line-1"):
            said = words(check_page(client.get(page, headers=BROWSER).text))
            assert "interrupted" in said and "yatt pipeline resume line-1 goes on" in said


def test_why_a_job_failed_is_said_in_the_table_and_in_the_error(yatt: Yatt, plant: Plant) -> None:
    plant.write({"sft": JOBS["sft"]})
    reason = "the disk is full"
    with mock.patch("flows.pipelines.runner.begun_run", side_effect=InfrastructureError(reason)):
        answer = yatt("pipeline", "run", str(plant.file))
    assert answer.code == 1 and answer.err.count(reason) == 1 and answer.out.count(reason) == 1
    assert "line-1: sft has failed" in answer.err


def test_what_jobs_name_is_checked_before_anything_begins(yatt: Yatt, plant: Plant) -> None:
    run = {"kind": "train", "spec": "run.yaml"}
    changes = ["iteration=4", "iterations", "seed=${job.first.run}", "tracking.tags.of=${first.run}", "seed=[1"]
    jobs = {
        "first": run | {"set": ["evaluation.sampling={samples: 4, temperature: 1.0, pass_at: [4]}"]},
        **{f"wrong-{number}": run | {"set": ["iterations=2", text]} for number, text in enumerate(changes)},
        "pipeline": run | {"spec": "pipeline.yaml"},
        "evaluation": {"kind": "evaluate", "of": "first"},
        "gate": {"kind": "gate", "of": "evaluation", "at_least": {"acuracy": 0.1, "pass_at_4": 0.1}},
        "sound": run | {"set": ["name=${jobs.first.run}", "model={kind: folder, path: ${jobs.first.model}}"]},
    }
    cron = {"kind": "schedule", "cron": "0 25 * * *"}
    plant.write(jobs, triggers=[cron, {"kind": "schedule", "interval": "6h", "timezone": "Europe/Berln"}])
    for command in ("run", "deploy"):
        answer = yatt("pipeline", command, str(plant.file))
        assert answer.code == 2 and not plant.home.folder.exists()
        said = [line.removeprefix("error: ").removeprefix(f"{plant.file}: ") for line in answer.err.splitlines()]
        expected = [
            "triggers.0.cron: '0 25 * * *': hour: '25' is not in 0-23",
            "triggers.1.timezone: there is no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?",
            "jobs.wrong-0.set.1: iteration=4: iteration: unknown key; did you mean 'iterations'?",
            "jobs.wrong-1.set.1: iterations: expected key=value",
            "jobs.wrong-2.set.1: ${job.first.run} is no reference to a job; did you mean `${jobs.first.run}`?",
            "jobs.wrong-3.set.1: ${first.run} is no reference to a job; did you mean `${jobs.first.run}`?",
            "jobs.wrong-4.set.1: seed=[1",
            f"jobs.pipeline.spec: {plant.file} is a pipeline's file; expected the spec of a run",
            "jobs.gate.at_least.acuracy: unknown figure; did you mean 'accuracy'?",
        ]
        assert len(said) == len(expected)
        assert all(line.startswith(start) for line, start in zip(said, expected, strict=True)), said


def test_the_figures_that_a_gate_can_require_are_those_of_an_evaluation() -> None:
    tasks = [TaskResult(prompt_id="a", correct=1, reward=0.5, samples=4, source=0, majority=1.0)]
    sampling = EvaluationSampling(samples=4, temperature=1.0, pass_at=(1, 4), vote=VoteSpec())
    found = figures_of(summarise(tasks, EvaluationSpec(sampling=sampling)))
    assert set(figure_names(sampling)) == set(found)


def test_figures_say_how_many_answers_have_no_score_and_without_any_there_are_none() -> None:
    evaluation = EvaluationSpec(sampling=EvaluationSampling(samples=4, temperature=1.0))
    partly = TaskResult(prompt_id="a", correct=1, reward=0.5, samples=2, source=0, majority=None, unscored=2)
    never = TaskResult(prompt_id="b", correct=0, reward=0.0, samples=0, source=0, majority=None, unscored=4)
    found = figures_of(summarise([partly, never], evaluation))
    assert (found["tasks"], found["unscored"], found["accuracy"], found["reward"]) == (1, 6, 0.5, 0.5)
    with pytest.raises(DataError, match="no answer to any task has a score"):
        figures_of(summarise([never], evaluation))
