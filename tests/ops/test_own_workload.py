"""What commands and the dashboard say of a run that trains something other than a language model."""

from __future__ import annotations

import re

import pytest
import torch
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.cli.commands.inspection.run_picture import line
from ops.dashboard.app import create_app
from ops.queries.watch import watched
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from tests.services import ROOT
from tests.workloads.counting import Counting
from tests.workloads.in_process import OwnRun
from yatt_core.experience.prepared import prepared_folder, rank_file
from yatt_core.workloads.columns import COLUMNS

LONG_NAME = "evaluation/test/mrr_optimistic_of_all"
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
    assert checked["learnt"].keys() == {"loss"}
    metrics = ("loss", "evaluation/mean", "lost", "kl", "update/skipped")
    rules = [f"{{name: guard_{number}, metric: {metric}, at_most: 1}}" for number, metric in enumerate(metrics)]
    watched = yatt("check", str(SPEC), "--set", f"guards.custom=[{', '.join(rules)}]")
    assert watched.err.count("guards.custom.") == 2
    assert "guards.custom.3.metric: 'kl' is none" in watched.err, "language models alone have it"
    assert "guards.custom.2.metric: 'lost' is none of the metrics of this trial" in watched.err
    assert "has no effect: evaluation/mean, loss" in watched.err
    answer = yatt("check", str(SPEC), "--set", "workload.settings={broken: draw}")
    assert answer.code == 2 and "draw: column 'numbers' is list; expected a numpy array of numbers" in answer.err
    answer = yatt("plan", str(SPEC))
    assert answer.code == 2 and "does not say what it needs, so that nothing can be planned" in answer.err
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


def test_nothing_shows_what_only_language_models_have(run: OwnRun, home: Home, yatt: Yatt) -> None:
    language = seed_run(home)
    shown, of_language = (yatt("show", name).out for name in (run.run, language))
    for words in ("samples, tokens", "experience digest", "driver traffic"):
        assert words in of_language and words not in shown
    metrics = yatt("show", run.run, "-o", "json").document["metrics"]
    assert "seconds/iteration" in metrics and "tokens_per_second" not in metrics
    with run.ledger() as ledger:
        told = line(watched(ledger, run.run))
    assert "iteration 4/4" in told and "tokens/s" not in told
    with TestClient(create_app(run.home), base_url="http://127.0.0.1:8686") as client:
        page, page_of_language = (client.get(f"/runs/{name}").text for name in (run.run, language))
        for words in ("<dt>Reward</dt>", "Parts of the reward"):
            assert words in page_of_language and words not in page
        assert "<dt>Reward</dt>" not in client.get(f"/runs/{run.run}/now").text
        _, _, listed = client.get("/").text.partition(f'value="{run.run}"')
        cells = dict(re.findall(r'data-name="(Reward|Accuracy)">([^<]*)<', listed.partition("</tr>")[0]))
        assert cells == {"Reward": "–", "Accuracy": "–"}


def test_a_workload_that_counts_tokens_has_their_rate(home: Home) -> None:
    torch.set_num_threads(1)
    own = OwnRun.of(home.folder, SPEC, "workload.settings={broken: metric tokens}")
    own.drive()
    with own.ledger() as ledger:
        assert [step for step, _ in ledger.metrics.history(own.run, "tokens_per_second")] == [1, 2, 3, 4]


def test_values_of_long_names_keep_their_distance(home: Home, yatt: Yatt, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(Counting, "evaluate", lambda self: {LONG_NAME.removeprefix("evaluation/"): 0.25})
    own = OwnRun.of(home.folder, SPEC)
    own.drive()
    rows = [row for row in yatt("show", own.run).out.splitlines() if row.startswith("  ")]
    (named,) = (row for row in rows if row.startswith(f"  {LONG_NAME} "))
    values_at = 2 + len(LONG_NAME) + 2
    assert named[values_at - 2 : values_at] == "  " and named[values_at] != " "
    (folder,) = (row for row in rows if row.startswith("  folder "))
    assert folder[values_at - 1 :].startswith(" /"), "all values stay in one column"


def test_its_settings_stay_as_they_are(run: OwnRun, yatt: Yatt) -> None:
    answer = yatt("resume", run.run, "--set", "workload.settings={at: 1}", "--set", "iterations=5")
    assert answer.code == 2 and "workload.settings cannot change during a run" in answer.err


def test_two_runs_are_compared_by_their_digests(run: OwnRun, yatt: Yatt) -> None:
    again = OwnRun.of(run.home.folder, SPEC)
    again.drive()
    other = OwnRun.of(run.home.folder, SPEC, "seed=7")
    other.drive()
    for one, equal in ((again.run, True), (other.run, False)):
        digests = yatt("compare", run.run, one, "-o", "json").document["digests"]
        assert {row["name"]: row["equal"] for row in digests}["experience_digest"] is equal
    text = yatt("compare", run.run, again.run).out
    assert "equal" in text and "different" not in text
    assert "reward" not in text and "tokens_per_second" not in text, "it has neither"


def test_an_audit_tells_of_a_damaged_file(run: OwnRun, yatt: Yatt) -> None:
    assert yatt("audit", "verify", run.run).code == 0
    path = run.folder / prepared_folder(0, 3, 1) / rank_file(0, COLUMNS)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    answer = yatt("audit", "verify", run.run, "-o", "json")
    assert answer.code == 1 and answer.document["disagreement"]["place"] == str(path)
