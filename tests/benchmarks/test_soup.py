"""The benchmark of soups on very short runs: it reports its keys, and a kept home is not trained again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.local_runs import LocalRuns
from benchmarks.soup import __main__ as benchmark


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_the_report_has_its_keys_and_a_kept_home_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "HELD_OUT", 20)
    trained = []
    monkeypatch.setattr(LocalRuns, "__call__", _counted(LocalRuns.__call__, trained))
    words = ["--json", "--seeds", "0", "--objectives", "2", "--iterations", "5", "--home", str(tmp_path / "home")]
    monkeypatch.setattr(sys, "argv", ["benchmarks.soup", *words])
    reports = []
    for _ in range(2):
        benchmark.main()
        reports.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert set(reports[0]["figures"]) == {"kendall_tau_2", "hypervolume_ratio_2", "search_iterations_2"}
    assert -1 <= reports[0]["figures"]["kendall_tau_2"] <= 1 and reports[0]["figures"]["search_iterations_2"] == 0.4
    assert reports[1]["figures"] == reports[0]["figures"] and len(trained) == 3


def _counted(call, trained):
    def counted(self, goals):
        trained.append(list(goals().values()))
        call(self, goals)

    return counted
