"""`benchmarks.equal_learning`: each mode trains on real engines from as many samples, and finished runs are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import equal_learning
from benchmarks.equal_learning import LONGEST, MODES, Trained, report_of, tasks

SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "data.held_out=8",
    "data.prompts_per_iteration=8",
    "data.probe=8",
    "rollout.samples_per_prompt=2",
    "sft.max_steps=5",
)
ITERATIONS = 4


@pytest.mark.verify
@pytest.mark.timeout(300)
def test_every_mode_learns_from_as_many_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and tail learn from groups that earlier iterations sealed, each as it is in the end."""
    few = equal_learning.Mode(("rollout.slice_tokens=4", "rollout.in_flight=16"))
    monkeypatch.setattr(equal_learning, "MODES", {**MODES, "slices": few})
    trained = Trained(tmp_path, ITERATIONS, SMALL)
    runs = {name: [trained.figures(name, 0)] for name in MODES}
    figures = report_of(runs, [0], []).figures
    assert {f"{figure}_{name}" for name in MODES for figure in ("accuracy", "start")} < figures.keys()
    assert all(len(run["sampled"]) == ITERATIONS for (run,) in runs.values())
    assert figures["crossing_share"] > 0 == runs["lag0"][0]["crossed"]
    assert len({run["start"] for (run,) in runs.values()}) == 1, "all runs of a seed begin with the same weights"
    before = (tmp_path / "tail-0.json").read_bytes()
    assert trained.figures("tail", 0) == runs["tail"][0]
    assert (tmp_path / "tail-0.json").read_bytes() == before
    with pytest.raises(ValueError, match="a run of 4 iterations"):
        Trained(tmp_path, ITERATIONS + 1, SMALL).figures("tail", 0)


def test_lengths_of_the_answers_spread_by_a_factor_of_ten() -> None:
    rows = tasks(0)
    lengths = sorted(len(row["answer"]) + 1 for row in rows)
    assert lengths[0] == 2 and lengths[-1] == LONGEST + 1
    assert lengths[-1] / lengths[0] > 8
    assert sum(length > 4 for length in lengths) > 0.3 * len(lengths)
    assert all((row["answer"][0] + row["answer"][-1]) == row["prompt"] for row in rows)
    assert len({row["prompt"] for row in rows}) == len(rows) > 1000
    assert json.dumps(rows) == json.dumps(tasks(0))


def test_the_report_compares_each_mode_with_lag_0() -> None:
    runs = {
        name: [{"start": 0.2, "accuracy": 0.6 + 0.01 * number, "crossed": 0.4}] for number, name in enumerate(MODES)
    }
    figures = report_of(runs, [0], []).figures
    assert figures["rise_lag0"] == pytest.approx(0.4)
    assert figures["accuracy_gap_max"] == pytest.approx(0.05)
    assert figures["crossing_share"] == 0.4
