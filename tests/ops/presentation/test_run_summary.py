"""The summary printed at the end of a command, and its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.metrics import RESULT, Metric
from flows.reports import learning_curve
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.results import run_results
from ops.presentation import run_summary
from ops.presentation.run_summary import mlflow_command, print_summary
from tests.engines.train.preferred import KINDS, preferred_spec
from tests.ops.seeding import commit_of, seed_run, toy_spec
from yatt_core.spec.sections.model import SftSpec


def closing_words(home: Home, run: str, capsys: pytest.CaptureFixture[str]) -> str:
    with Ledger.open(home.ledger) as ledger:
        print_summary(ledger, home, run_results(ledger, run), current_spec(ledger, run))
    return capsys.readouterr().out


def test_it_names_improvements_files_and_next_steps(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    text = closing_words(home, seed_run(home), capsys)
    assert "toy-1 is stopped, iteration 2 of 4 (stop requested)" in text
    assert "held-out accuracy 0.250 before training, now 0.500" in text and "SFT" not in text
    assert "reward 0.100 in iteration 1, 0.200 in iteration 2" in text
    for path in (
        home.run_folder("toy-1"),
        home.run_folder("toy-1") / "logs",
        home.run_folder("toy-1") / "learning.png",
    ):
        assert str(path) in text
    for command in ("yatt show toy-1", "yatt rollouts toy-1 --iteration 2", "yatt resume toy-1"):
        assert command in text
    picture = (home.run_folder("toy-1") / "learning.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_sft_is_named_where_the_spec_has_it(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    spec = toy_spec().model_copy(update={"sft": SftSpec()})
    text = closing_words(home, seed_run(home, spec=spec), capsys)
    assert "held-out accuracy 0.250 after SFT, now 0.500" in text and "of which SFT 3.5 s" in text


def test_a_run_that_samples_nothing_and_tells_no_tracker(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = preferred_spec(tmp_path / "rows", KINDS["dpo"], rows=60, tracking={"enabled": False})
    text = closing_words(home, seed_run(home, spec=spec), capsys)
    assert "yatt evaluate preferred-1" in text
    assert "rollouts" not in text and "MLflow" not in text and "mlflow.db" not in text


def test_an_accuracy_has_its_interval(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = seed_run(home, ends=False)
    bounds = [Metric("evaluation/accuracy_low", 0.2, RESULT), Metric("evaluation/accuracy_high", 0.8, RESULT)]
    with Ledger.open(home.ledger) as ledger:
        commit = replace(commit_of(3), metrics=[Metric("evaluation/accuracy", 0.5, RESULT), *bounds])
        ledger.commits.commit(Fence.of_run(run, 1), commit)
    assert "now 0.500 (95 % interval 0.200 to 0.800)" in closing_words(home, run, capsys)


def test_missing_matplotlib_is_reported(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_curve, "find_spec", lambda _: None)
    assert "none: matplotlib is not installed" in closing_words(home, seed_run(home), capsys)
    assert not (home.run_folder("toy-1") / "learning.png").exists()


def test_a_disk_that_refuses_the_picture_hides_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = seed_run(home)
    (home.run_folder(run) / "learning.png").mkdir(parents=True)
    text = closing_words(home, run, capsys)
    assert "toy-1 is stopped" in text and "yatt resume toy-1" in text
    assert "Is a directory" in text


def test_a_run_that_was_stopped_before_its_first_commit(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    text = closing_words(home, seed_run(home, committed=-1), capsys)
    assert "toy-1 is stopped, " in text and "first commit, 4 iterations" in text
    assert "yatt resume toy-1" in text
    assert "rollouts" not in text


def test_the_place_of_the_run_in_mlflow(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_summary, "find_spec", lambda name: name)
    assert mlflow_command(home).startswith(f"mlflow ui --backend-store-uri sqlite:///{home.folder / 'mlflow.db'}")
    monkeypatch.setattr(run_summary, "find_spec", lambda name: None)
    assert mlflow_command(home).startswith("pip install mlflow==3.")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@host:5000")
    assert mlflow_command(home) == "http://user:***@host:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:secret@host/mlflow")
    assert "secret" not in mlflow_command(home)
