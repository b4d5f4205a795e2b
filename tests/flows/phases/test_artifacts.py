"""Prefect's artifacts are only for display: an unreachable server never ends a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn
from uuid import uuid4

import pytest
from httpx import ConnectError

from flows.driver.run_status import Outcome
from flows.phases import artifacts


def unreachable(*_: object, **__: object) -> NoReturn:
    raise ConnectError("connection refused")


def toy_context() -> Any:
    metrics = SimpleNamespace(latest=lambda run: {})
    return SimpleNamespace(run="toy-1", spec=SimpleNamespace(iterations=4), ledger=SimpleNamespace(metrics=metrics))


def test_an_unreachable_server_ends_no_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("create_progress_artifact", "update_progress_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(artifacts, name, unreachable)
    monkeypatch.setattr(artifacts, "UPDATE_SECONDS", 0.0)
    with artifacts.progress(toy_context()) as progress:
        progress.update(1)
    artifacts.Progress(uuid4(), 4).update(2)
    artifacts.report(toy_context(), Outcome("toy-1", "completed", 4, "target reached", 0))
    assert caplog.text.count("connection refused") == 3


def test_an_error_of_the_run_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_, **__: uuid4())
    with pytest.raises(ConnectError), artifacts.progress(toy_context()):
        raise ConnectError("of the run's own")
