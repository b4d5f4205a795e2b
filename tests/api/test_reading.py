"""A run in Python: state, metrics, samples, checkpoints, audit, and what it refuses; on runs as drivers leave them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import yatt
from db.core.holder import this_process
from db.ledger import Ledger
from flows.run.home import Home
from tests.ops.audited import make_sound_run
from tests.ops.seeding import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = Home(tmp_path_factory.mktemp("api") / "runs")
    seed_run(home)
    return home.folder


@pytest.fixture
def run(seeded: Path, tmp_path: Path) -> yatt.Run:
    return yatt.find("toy-1", shutil.copytree(seeded, tmp_path / "runs"))


def test_runs_are_found_as_by_the_command_line(run: yatt.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run.home.folder
    assert [found.id for found in yatt.runs(folder)] == ["toy-1"]
    monkeypatch.setenv("YATT_HOME", str(folder))
    assert yatt.find() == yatt.find("toy") == run
    with pytest.raises(yatt.errors.RunNotFound):
        yatt.find("toy-7")
    with pytest.raises(yatt.errors.ConfigurationError, match="no runs here"):
        yatt.runs(folder / "elsewhere")


def test_a_run_has_its_state_spec_and_results(run: yatt.Run) -> None:
    assert (run.state.state, run.state.iteration, run.state.driver) == ("stopped", 2, "nobody")
    assert run.spec.name == "toy" and run.results.accuracy == 0.5
    assert run.folder == run.home.folder / "toy-1"
    assert run.wait().state == "stopped", "nobody drives it, so there is nothing to wait for"


def test_metrics_are_a_row_for_each_iteration(run: yatt.Run) -> None:
    table = run.metrics("reward/mean", "evaluation/accuracy")
    assert table.column_names == ["iteration", "reward/mean", "evaluation/accuracy"]
    assert table.to_pydict() == {
        "iteration": [0, 1, 2], "reward/mean": [None, 0.1, 0.2], "evaluation/accuracy": [0.25, 0.375, 0.5],
    }  # fmt: skip
    frame = run.metrics(pandas=True)
    assert list(frame.index) == [0, 1, 2] and "tokens_per_second" in frame.columns
    with pytest.raises(yatt.errors.ConfigurationError, match="no metric 'reward/men'; known: reward/mean"):
        run.metrics("reward/men")


def test_data_frames_need_pandas(run: yatt.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from yatt import tables

    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(yatt.errors.ConfigurationError, match="pip install pandas"):
        run.metrics(pandas=True)


def test_samples_are_in_order_with_texts_tokens_and_validity(run: yatt.Run) -> None:
    table = run.samples()
    assert table.num_rows == 8
    rows = table.select(["prompt_ordinal", "sample", "response", "tokens", "validity"]).to_pylist()
    assert [(row["prompt_ordinal"], row["sample"]) for row in rows] == [(4 + p, s) for p in range(4) for s in range(2)]
    assert rows[3] == {"prompt_ordinal": 5, "sample": 1, "response": "answer 1.1", "tokens": 2, "validity": "used"}
    assert run.samples(1, pandas=True)["response_tokens"][0].tolist() == [4, 5]
    with pytest.raises(yatt.errors.ConfigurationError, match="no experience of iteration 9"):
        run.samples(9)


def test_a_run_without_a_driver_cannot_be_stopped_and_without_checkpoints_not_forked(run: yatt.Run) -> None:
    assert run.stop() is False
    with pytest.raises(yatt.errors.ConfigurationError, match="has no driver"):
        run.checkpoint()
    assert run.checkpoints() == ()
    with pytest.raises(yatt.errors.ConfigurationError, match="no checkpoint"):
        run.export()
    with pytest.raises(yatt.errors.ConfigurationError):
        run.fork(1)
    with pytest.raises(yatt.errors.ConfigurationError, match="iteration 9"):
        run.rollback(9)


def test_numbers_and_reasons_are_checked(run: yatt.Run) -> None:
    with pytest.raises(yatt.errors.ConfigurationError, match=r"^iteration: expected a whole number"):
        run.samples("x")  # type: ignore[call-overload]
    for reason in ("", " "):
        with pytest.raises(yatt.errors.ConfigurationError, match=r"^reason: expected a few words"):
            run.rollback(1, reason)


def test_an_audit_is_a_report(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    make_sound_run(home)
    run = yatt.find("latest", home.folder)
    seen = set[str]()
    report = run.audit(lambda check, done, total: seen.add(check))
    assert report.sound and seen <= set(report.checked) and "experience" in seen


def test_a_driven_run_is_waited_for_and_asked_to_stop(run: yatt.Run) -> None:
    with Ledger.open(run.home.ledger) as ledger:
        fence = ledger.leases.acquire(run.id, this_process(f"yatt driver of {run.id}"), 600)
        ledger.runs.set_state(fence, "running")
        with pytest.raises(TimeoutError, match="at iteration 2"):
            run.wait(0.0)
        with pytest.raises(yatt.errors.LeaseHeld):
            yatt.resume(run)
        with pytest.raises(yatt.errors.LeaseHeld):
            run.rollback(1)
        run.checkpoint("before the upgrade")
        pending = ledger.checkpoint_requests.pending(run.id)
        assert pending is not None and pending.reason == "before the upgrade"
        assert run.stop(within=5.0) is True
        assert ledger.runs.desired_state(run.id) == "stop"
        ledger.leases.release(fence)
        with pytest.raises(yatt.errors.InfrastructureError, match="disappeared"):
            run.wait()


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [("data", "DataError"), ("numeric", "NumericError"), ("infrastructure", "InfrastructureError")],
)
def test_a_failed_run_raises_the_error_of_its_class(run: yatt.Run, failure_class: str, kind: str) -> None:
    with Ledger.open(run.home.ledger) as ledger:
        fence = ledger.leases.acquire(run.id, this_process(f"yatt driver of {run.id}"), 600)
        attempt = ledger.phases.plan(fence, 0, 3, "collect")
        ledger.phases.dispatch(fence, attempt)
        ledger.phases.fail(fence, attempt, failure_class, "row 3 is bad")
        ledger.runs.set_state(fence, "failed", "collect failed: row 3 is bad")
        ledger.leases.release(fence)
    with pytest.raises(getattr(yatt.errors, kind), match="row 3 is bad") as caught:
        run.wait()
    assert type(caught.value).__name__ == kind
