"""Prefect's artifacts are only for display: an unreachable server never ends a run."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.driver.run_status import Outcome
from flows.phases import artifacts
from yatt_core.supervisor.runner import free_port


def toy_context() -> tuple[Any, list[str]]:
    said = list[str]()
    metrics = SimpleNamespace(latest=lambda run: {})
    observer = SimpleNamespace(warned=said.append, stage=said.append)
    ledger, spec = SimpleNamespace(metrics=metrics), SimpleNamespace(iterations=4)
    return SimpleNamespace(run="toy-1", spec=spec, ledger=ledger, observer=observer), said


def test_an_unreachable_server_ends_no_run_and_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "UPDATE_SECONDS", 0.0)
    context, said = toy_context()
    address = f"http://127.0.0.1:{free_port()}/api"
    began = time.monotonic()
    with temporary_settings({PREFECT_API_URL: address}), artifacts.progress(context) as progress:
        for iteration in range(1000):
            progress.update(iteration)
        progress.conclude(Outcome("toy-1", "completed", 4, "target reached", 0))
    assert len(said) == 1 and address in said[0]
    assert time.monotonic() - began < 10.0, "requests are not repeated"


def test_an_error_of_the_run_passes_through() -> None:
    context, _ = toy_context()
    address = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(ConnectionError),
        artifacts.progress(context),
    ):
        raise ConnectionError("of the run's own")
