"""`yatt evaluate --suite` and `yatt evaluations` on a virtual run: figures by set, a history, and no repetition."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sqlalchemy import text, update

from db.core.engine import Fence
from db.core.suite_models import SuiteEvaluation
from db.ledger import Ledger
from db.write.suites import SuiteRow
from flows.run.home import Home
from ops.evaluation.following import follow
from ops.evaluation.suites import evaluated_once
from tests.db.tools import holder
from tests.evaluation.test_suites import write_suite
from tests.ops.conftest import Yatt
from tests.ops.evaluation.test_command import run as run
from tests.ops.seeding import toy_spec
from yatt_core.evaluation.estimators import pass_at_k
from yatt_core.spec.reading.documents import yaml_text


@pytest.fixture
def pinned(home: Home, run: str) -> str:
    """Gives the run's two checkpoints digests of their own, and ends its driver."""
    with Ledger.open(home.ledger) as ledger:
        with ledger._database.write() as connection:
            connection.execute(text("UPDATE checkpoint SET weights_digest = 'weights-of-' || iteration"))
        ledger.leases.release(Fence.of_run(run, 1))
    return run


def test_a_suite_is_evaluated_once_for_the_same_weights(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, sampling={"samples": 4, "pass_at": [2]})
    options = ("evaluate", pinned, "--suite", str(suite), "--iteration", "0")
    document = yatt(*options, "-o", "json").document
    assert (document["suite"], document["iteration"], document["weights_digest"]) == ("mixed", 0, "weights-of-0")
    figures = document["figures"]
    counts = [task["correct"] for task in document["results"]]
    assert figures["tasks"] == len(counts) == 9 and figures["low"] <= figures["accuracy"] <= figures["high"]
    assert figures["pass_at_2"]["value"] == pytest.approx(sum(pass_at_k(4, c, 2) for c in counts) / 9)
    assert {name: each["tasks"] for name, each in figures["sources"].items()} == {"words": 4, "spelling": 5}
    again = yatt(*options, "-o", "json")
    assert again.document == document and "evaluated on suite mixed before" in again.err
    shown = yatt("evaluate", pinned, "--suite", str(suite))
    assert f"{pinned}, iteration 2, suite mixed" in shown.out and "pass@2" in shown.out and "spelling: " in shown.out
    history = yatt("evaluations", pinned, "-o", "json").document["suites"]
    assert [(each["suite"], [point["iteration"] for point in each["points"]]) for each in history] == [
        ("mixed", [0, 2])
    ]
    assert "mixed" in yatt("evaluations", pinned).out
    assert yatt("evaluations", pinned, "--suite", "other", "-o", "json").document["suites"] == []
    with Ledger.open(home.ledger) as ledger:
        assert ledger.events.verify(pinned) is None and len(ledger.suites.of(pinned)) == 2


def test_a_fall_is_told(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    yatt("evaluate", pinned, "--suite", str(suite), "--iteration", "0")
    with Ledger.open(home.ledger) as ledger:
        (row,) = ledger.suites.of(pinned)
        results = [dict(task) | {"correct": 1} for task in row.results]
        with ledger._database.write() as connection:
            connection.execute(update(SuiteEvaluation).values(results=results))
    said = yatt("evaluate", pinned, "--suite", str(suite), "--iteration", "2").err
    assert "iteration 2 is significantly worse than the best one, iteration 0 (p = " in said
    assert "the best one, iteration 0" in yatt("evaluations", pinned).out


def test_tasks_without_a_score_are_no_fall(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    for iteration in ("0", "2"):
        yatt("evaluate", pinned, "--suite", str(suite), "--iteration", iteration)

    def set_results(iteration: int, **changes: int) -> None:
        with Ledger.open(home.ledger) as ledger:
            (row,) = [each for each in ledger.suites.of(pinned) if each.iteration == iteration]
            results = [dict(task) | changes for task in row.results]
            change = update(SuiteEvaluation).where(SuiteEvaluation.iteration == iteration).values(results=results)
            with ledger._database.write() as connection:
                connection.execute(change)

    set_results(0, correct=1)
    set_results(2, correct=0)
    assert "the best one, iteration 0" in yatt("evaluations", pinned).out
    set_results(2, samples=0, unscored=1)
    assert "the best one, iteration 0" not in yatt("evaluations", pinned).out


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--samples", "4"), "--samples"), (("--greedy",), "--greedy"), (("--model", "x"), "--model")],
)
def test_options_that_a_suite_decides_are_refused(
    yatt: Yatt, run: str, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    answer = yatt("evaluate", run, "--suite", str(write_suite(tmp_path)), *options)
    assert answer.code == 2 and "--suite and" in answer.err and told in answer.err


def test_a_follower_evaluates_what_is_kept_and_ends_with_the_run(home: Home, pinned: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    follow(home, pinned, suite, left_seconds=0.0)
    with Ledger.open(home.ledger) as ledger:
        assert [row.iteration for row in ledger.suites.of(pinned)] == [0, 2]
    follow(home, pinned, suite, left_seconds=0.0)
    with Ledger.open(home.ledger) as ledger:
        assert len(ledger.suites.of(pinned)) == 2


def test_one_follower_a_suite(
    home: Home, pinned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.run.lease.LIFE_SECONDS", 3.0)  # for as long, a lease that is held is waited for
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.take(f"suite/{pinned}/mixed", holder("a follower far away"), 600)
        follow(home, pinned, write_suite(tmp_path), left_seconds=0.0)
        assert "another process follows it for suite mixed: a follower far away" in capsys.readouterr().err
        assert ledger.suites.of(pinned) == []
        ledger.leases.renew(fence, -1)
        follow(home, pinned, write_suite(tmp_path), left_seconds=0.0)
        assert len(ledger.suites.of(pinned)) == 2


def test_following_needs_a_suite(yatt: Yatt, run: str) -> None:
    answer = yatt("evaluate", run, "--follow")
    assert answer.code == 2 and "--follow: needs --suite" in answer.err


def test_a_run_without_evaluations_says_how_to_make_one(yatt: Yatt, run: str) -> None:
    assert "`yatt evaluate toy-1 --suite SUITE`" in yatt("evaluations", run).out


def test_a_backfill_evaluates_all_kept_checkpoints_once(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    suite = str(write_suite(tmp_path))
    yatt("evaluate", pinned, "--suite", suite, "--iteration", "2")
    done = yatt("pipeline", "backfill", pinned, "--suite", suite, "-o", "json").document
    assert [each["iteration"] for each in done["evaluations"]] == [0, 2]
    assert yatt("pipeline", "backfill", pinned, "--suite", suite, "-o", "json").document == done
    with Ledger.open(home.ledger) as ledger:
        assert [row.iteration for row in ledger.suites.of(pinned)] == [2, 0]


def test_a_backfill_leaves_out_a_checkpoint_that_is_pruned_meanwhile(
    yatt: Yatt, home: Home, pinned: str, tmp_path: Path
) -> None:
    def evaluated_while_pruned(*arguments: Any, **named: Any) -> SuiteRow:
        with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
            connection.execute(text("UPDATE checkpoint SET state = 'pruned' WHERE iteration = 2"))
        return evaluated_once(*arguments, **named)

    with mock.patch("ops.evaluation.suites.evaluated_once", evaluated_while_pruned):
        done = yatt("pipeline", "backfill", pinned, "--suite", str(write_suite(tmp_path)), "-o", "json")
    assert [each["iteration"] for each in done.document["evaluations"]] == [0]
    assert "iteration 2 is left out: its checkpoint was pruned meanwhile" in done.err


def judges_file(folder: Path, *names: str) -> Path:
    """Writes a run's spec with judges."""
    virtual = {"kind": "virtual", "clock_factor": 1e9}
    parts = [
        {"kind": "generative", "name": name, "engine": virtual, "template": "{prompt} {response}"} for name in names
    ]
    tree = toy_spec().model_dump(mode="json")
    tree["rewards"]["parts"] += parts
    path = folder / "judges.yaml"
    path.write_text(yaml_text(tree))
    return path


def test_judges_of_a_suite_have_figures_of_their_own(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    judges = [{"kind": "generative", "name": name, "engine": {"kind": "virtual", "clock_factor": 1e9}, "template": "{response}"}
              for name in ("strict", "kind")]  # fmt: skip
    suite = write_suite(tmp_path, judges={"parts": judges}, sampling={"samples": 2})
    document = yatt("evaluate", pinned, "--suite", str(suite), "--iteration", "0", "-o", "json").document
    figures = document["figures"]
    results = document["results"]
    assert figures["panel"]["value"] == pytest.approx(sum(each["panel"] for each in results) / 9)
    for name in ("strict", "kind"):
        assert figures[f"judge_{name}"]["value"] == pytest.approx(sum(each["judges"][name] for each in results) / 9)
    words = [each for each in results if each["prompt_id"].startswith("words/")]
    assert figures["sources"]["words"]["panel"]["value"] == pytest.approx(sum(each["panel"] for each in words) / 4)
    assert "judges: " in yatt("evaluate", pinned, "--suite", str(suite), "--iteration", "0").out
    assert "judge strict" in yatt("evaluations", pinned).out


def test_all_kept_checkpoints_are_rejudged_once(yatt: Yatt, home: Home, pinned: str, tmp_path: Path) -> None:
    file = judges_file(tmp_path, "strict", "kind")
    words = ("pipeline", "backfill", pinned, "--rejudge", f"{file}/strict")
    done = yatt(*words, "-o", "json").document
    assert done["suite"] == "held-out" and [each["iteration"] for each in done["evaluations"]] == [0, 2]
    assert all({"accuracy", "panel", "judge_strict"} <= each["figures"].keys() for each in done["evaluations"])
    assert yatt(*words, "-o", "json").document == done, "the same judge, the same rows"
    more = yatt(*words, "--rejudge", f"{file}/kind", "--combine", "majority", "-o", "json").document
    strict = [[each["figures"]["judge_strict"] for each in found["evaluations"]] for found in (done, more)]
    assert strict[0] == strict[1], "the same answers and the same seeds"
    assert [each["number"] for each in more["evaluations"]] == [3, 4]
    suite = str(write_suite(tmp_path))
    found = yatt("pipeline", "backfill", pinned, "--suite", suite, "--rejudge", f"{file}/kind", "-o", "json").document
    assert found["suite"] == "mixed" and "judge_kind" in found["evaluations"][0]["figures"]
    assert "judge strict" in yatt(*words).out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "--suite or --rejudge"),
        (
            ("--rejudge", "none.yaml/strict"),
            "--rejudge none.yaml/strict: expected SPEC/JUDGE, such as judges.yaml/strict; there is no file none.yaml",
        ),
        (("--rejudge", "strict"), "--rejudge strict: expected SPEC/JUDGE"),
        (("--rejudge", "{file}/other"), "has no generative judge 'other'; known: strict"),
        (("--rejudge", "{file}/strict", "--rejudge", "{file}/strict"), "each name can be given to one judge only"),
        (("--suite", "{file}", "--combine", "mean"), "--combine: needs --rejudge"),
    ],
)
def test_wrong_judges_are_named(yatt: Yatt, run: str, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    file = judges_file(tmp_path, "strict")
    answer = yatt("pipeline", "backfill", run, *(word.format(file=file) for word in options))
    assert answer.code == 2 and told in answer.err
