"""The arithmetic of `benchmarks.peer_run`, and runs of TRL with less work."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import peer_environment
from benchmarks.peer_run import ours, theirs
from benchmarks.peer_run.__main__ import main, report_of, said
from benchmarks.peer_run.measured import PARTS, Measured, Point, Round, baselines_of, figures_of
from benchmarks.peer_run.picture import draw
from benchmarks.peer_run.theirs import Layout
from flows.reports.profile import Profile, ProfileStep
from yatt_core.input_building.materialise import materialise
from yatt_core.spec import load_spec

OWN_PARTS = {
    "generate": 0.3, "update": 0.2, "weights": 0.1, "rewards": 0.1, "evaluate": 0.1, "checkpoint": 0.0, "data": 0.05,
    "orchestration": 0.1, "other": 0.05,
}  # fmt: skip
OWN = Measured(
    iterations=40,
    begin=10.0,
    end=50.0,
    seconds=55.0,
    accuracies=[Point(10.0, 0.2), Point(30.0, 0.4), Point(50.0, 0.8)],
    parts=OWN_PARTS,
)
TRL = Measured(
    iterations=40,
    begin=5.0,
    end=85.0,
    seconds=86.0,
    accuracies=[Point(5.0, 0.2), Point(45.0, 0.3), Point(85.0, 0.7)],
    parts={**OWN_PARTS, "generate": 1.3},
)


def test_an_accuracy_is_on_the_line_between_the_evaluations_around_a_second() -> None:
    assert OWN.accuracy_at(35.0) == pytest.approx(0.5)
    assert OWN.accuracy_at(30.0) == 0.4
    assert OWN.accuracy_at(0.0) == 0.2
    assert OWN.accuracy_at(99.0) == 0.8


def test_the_figures_compare_the_sides_at_the_end_of_our_run() -> None:
    figures = figures_of([Round(OWN, TRL)])
    assert figures["iteration_ratio_trl"] == pytest.approx(2.0)
    assert figures["step_share_of_iteration"] == pytest.approx(0.6)
    assert figures["accuracy_at_equal_seconds"] == 0.8
    assert figures["accuracy_at_equal_seconds_trl"] == pytest.approx(0.4)
    baselines = baselines_of([Round(OWN, TRL)])
    assert baselines["step_share_of_iteration_trl"] == pytest.approx(0.8)
    assert baselines["accuracy_start"] == baselines["accuracy_start_trl"] == 0.2


def test_times_are_medians_over_the_rounds() -> None:
    slow = Measured(40, 10.0, 450.0, 455.0, OWN.accuracies, OWN_PARTS)
    rounds = [Round(OWN, TRL), Round(slow, TRL), Round(OWN, TRL)]
    assert figures_of(rounds)["iteration_ratio_trl"] == pytest.approx(2.0)


def test_the_parts_of_our_iteration_add_up_to_its_wall_time() -> None:
    path = (
        ProfileStep("collect", "rollout-0", "engine", 0.3),
        ProfileStep("collect", "controller-0", "rewards", 0.05),
        ProfileStep("collect", "controller-0", "data", 0.01),
        ProfileStep("prepare", "trainer-0", "engine", 0.1),
        ProfileStep("learn", "trainer-0", "engine", 0.2),
        ProfileStep("sync", "trainer-0", "weights", 0.04),
        ProfileStep("sync", "driver", "ray", 0.02),
        ProfileStep("evaluate", "rollout-0", "engine", 0.03),
        ProfileStep("evaluate", "driver", "ray", 0.01),
        ProfileStep("commit", "driver", "ledger", 0.01),
        ProfileStep("commit", "trainer-0", "engine", 0.01),
    )
    profile = Profile(
        recorded=(1, 2), not_recorded=(), wall=1.0, unheard=(), processes=(), path=path, frames=(), others={}
    )
    parts = ours.parts_of(profile)
    assert parts == pytest.approx(
        {
            "generate": 0.3, "update": 0.3, "weights": 0.04, "rewards": 0.05, "evaluate": 0.04, "checkpoint": 0.0,
            "data": 0.01, "orchestration": 0.03, "other": 0.23,
        }
    )  # fmt: skip
    assert sum(parts.values()) == pytest.approx(profile.wall)


def test_an_answer_of_trl_is_read_as_seconds_since_its_start() -> None:
    answer = {
        "begin": 1007.0,
        "end": 1027.0,
        "accuracies": [[1006.0, 0.25], [1027.0, 0.5]],
        "seconds": {"generate": 8.0, "update": 4.0, "other": 8.0},
    }
    measured = theirs.measured_of(answer, 10, 1000.0, 28.0)
    assert (measured.begin, measured.end, measured.iteration_seconds) == (7.0, 27.0, 2.0)
    assert measured.accuracies == [Point(6.0, 0.25), Point(27.0, 0.5)]
    assert list(measured.parts) == list(PARTS)
    assert measured.step_share == pytest.approx(0.6)


def test_a_part_without_a_name_on_our_side_is_refused() -> None:
    answer = {"begin": 1.0, "end": 2.0, "accuracies": [], "seconds": {"orchestration": 1.0}}
    with pytest.raises(AssertionError):
        theirs.measured_of(answer, 1, 0.0, 3.0)


def test_the_report_and_the_picture_have_all_rounds(tmp_path: Path) -> None:
    rounds = [Round(OWN, TRL), Round(OWN, TRL)]
    report = report_of(rounds, {Layout(1, 2): 0.5, Layout(2, 1): 0.4}, {"trl": "1.16.0"}, 0, [0.5, 1.0])
    assert len(report.details["rounds"]) == 2
    assert report.details["parts_s_trl"]["generate"] == pytest.approx(1.3)
    assert report.details["layouts_s_trl"] == {"1x2": 0.5, "2x1": 0.4}
    assert said(OWN) == "55 s, 1000 ms an iteration, accuracy 0.200 -> 0.800"
    draw(rounds, tmp_path / "images" / "peer-run.png")
    assert (tmp_path / "images" / "peer-run.png").stat().st_size > 1000


def test_the_sides_take_turns_and_trl_has_its_fastest_layout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []

    def ours_train(*_: object) -> Measured:
        trained.append("YATT")
        return OWN

    def trl_train(request: dict[str, int], layout: Layout, _: Path) -> theirs.Finished:
        trained.append(f"TRL {layout}, {request['iterations']}")
        slower = 1.0 if layout == Layout(2, 1) else 2.0
        return theirs.Finished(replace(TRL, end=TRL.begin + slower * 80.0), {"trl": "1.16.0"})

    monkeypatch.setattr(peer_environment, "make", lambda: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(ours, "fine_tune", lambda *_: None)
    monkeypatch.setattr(ours, "train", ours_train)
    monkeypatch.setattr(theirs, "request_of", lambda *_: {"iterations": 40})
    monkeypatch.setattr(theirs, "train", trl_train)
    monkeypatch.setattr(sys, "argv", ["peer_run", "--rounds", "2", "--iterations", "40", "--json"])
    main()
    assert trained[:3] == ["TRL 1x1, 6", "TRL 1x2, 6", "TRL 2x1, 6"]
    assert trained[3:] == ["YATT", "TRL 2x1, 40", "TRL 2x1, 40", "YATT"]
    report = json.loads(capsys.readouterr().out)
    assert report["figures"]["iteration_ratio_trl"] == pytest.approx(2.0)
    assert report["details"]["layouts_s_trl"] == pytest.approx({"1x1": 3.9, "1x2": 3.9, "2x1": 1.9})


@pytest.mark.verify
@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(2, 1)], ids=str)
def test_trl_trains_on_the_prompts_that_our_run_draws(layout: Layout, tmp_path: Path) -> None:
    if not peer_environment.is_there():
        pytest.fail("the peers' environment is missing; `make verify` makes it, as does ops/bootstrap.py --peers")
    small = load_spec(ours.SPEC)
    start = Path(materialise(small, tmp_path / "model").model_path)
    request = theirs.request_of(ours.spec_of(start, 2, 0), tmp_path / "inputs")
    assert len(request["train"]) == 2 * 64 and len(request["held_out"]) == 300
    assert request["rates"] == pytest.approx([6e-5, 1.2e-4])
    finished = theirs.train(request, layout, tmp_path / "trl")
    measured = finished.measured
    assert len(measured.accuracies) == 2
    assert 0.0 < measured.begin < measured.end < measured.seconds
    assert sum(measured.parts.values()) == pytest.approx(measured.iteration_seconds, rel=0.05)
    assert measured.parts["generate"] > 0.0 and measured.parts["update"] > 0.0 and measured.parts["checkpoint"] > 0.0
    assert finished.versions["trl"].startswith("1.16.")
