"""The processes that evaluate a run's suites: which command, with which devices and log."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.run.home import Home
from ops import evaluators
from ops.evaluators import start_evaluators
from tests.evaluation.test_suites import write_suite
from tests.ops.seeding import toy_spec
from yatt_core.spec import override_spec


def test_each_suite_has_a_follower_with_its_own_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []

    def start(command: list[str], **options: Any) -> Any:
        started.append((command, options))
        return SimpleNamespace(pid=4711)

    monkeypatch.setattr(evaluators, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    suite = write_suite(tmp_path)
    suites = f"evaluation.suites=[{{path: {suite}}}, {{path: {suite}, devices: '6,7'}}]"
    home = Home(tmp_path / "runs")
    assert start_evaluators(home, "toy-1", override_spec(toy_spec(), [suites], "test")) == [4711, 4711]
    assert [options["env"]["CUDA_VISIBLE_DEVICES"] for _, options in started] == ["0,1", "6,7"]
    command = ["evaluate", "--suite", str(suite), "--follow", "--", "toy-1"]
    assert all(words[-6:] == command and options["start_new_session"] for words, options in started)
    logs = sorted(path.name for path in home.run_folder("toy-1").iterdir())
    assert logs == ["evaluate-0-suite.log", "evaluate-1-suite.log"]
    assert start_evaluators(home, "toy-1", toy_spec()) == []
