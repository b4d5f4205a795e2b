"""The benchmark of sweeps on very short runs: it reports its keys, and the killed sweep decides the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import sweep as benchmark

SMALL = ("iterations=8", "evaluation.every=2", "data.prompts_per_iteration=4", "data.held_out=10", "sft.max_steps=3")


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_the_report_has_its_keys_and_kills_change_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [word for change in SMALL for word in ("--set", change)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.sweep", "--json", "--home", str(tmp_path / "home"), *changes])
    benchmark.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["equal_decisions"] == 1 and figures["kills"] == len(benchmark.KILLED_AFTER)
    # 16 trials to iteration 2, at least 4 on to 8, which is the last rung: rungs are 2 and 8.
    assert figures["iterations_fraction"] == pytest.approx((16 * 2 + 4 * 6) / (16 * 8), abs=0.15)
    assert {"best_over_grid_best", "best", "grid_best"} <= figures.keys()
