"""Fixtures of the operations tests: a new home folder, and the command line as the installed script calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.run.home import Home
from ops.cli.main import main
from ops.preflight.library_trial import LibraryTrial
from tests.ops.audited import make_sound_run


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object in the last line of standard output."""
        value: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return value


Yatt = Callable[..., Answer]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


@pytest.fixture(scope="session")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates, once, the home folder of a run in which everything agrees; tests copy it."""
    home = Home(tmp_path_factory.mktemp("sound") / "runs")
    make_sound_run(home)
    return home.folder


@pytest.fixture
def yatt(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Yatt:
    monkeypatch.setenv("YATT_HOME", str(home.folder))

    def call(*words: str) -> Answer:
        capsys.readouterr()
        code = main(words)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> list[LibraryTrial]:
    """Has `yatt doctor` try no library, which takes ten seconds, but what a test adds."""
    chosen: list[LibraryTrial] = []
    monkeypatch.setattr("ops.preflight.library_trial.TRIALS", chosen)
    return chosen
