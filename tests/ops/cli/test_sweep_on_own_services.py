"""A sweep whose trials take turns at one Ray head: as many heads as places, and a head that is killed changes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from tests.carrier import SECONDS, Carrier
from tests.ops.cli.test_real_sweep import OPTIONS, chain
from yatt_core.supervisor.client import current_state

SHARED = ("YATT_RAY_ADDRESS", "PREFECT_API_URL", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""What would name services that exist already."""


def kill_head(home: Home) -> None:
    """Kills the head of the only cluster."""
    (cluster,) = (folder for folder in home.clusters.iterdir() if folder.is_dir())
    state = current_state(cluster)
    assert state is not None
    head = state.service("ray").identity
    assert head is not None
    os.kill(head.pid, signal.SIGKILL)


@pytest.mark.verify
@pytest.mark.timeout(3 * SECONDS)
def test_trials_take_turns_at_one_head_and_survive_its_loss(
    tmp_path: Path, service_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Carrier("sweep", tmp_path / "plain", service_environment)
    shown = plain.finish(*OPTIONS)
    for name in SHARED:
        monkeypatch.delenv(name, raising=False)
    own = {name: value for name, value in service_environment.items() if name not in (*SHARED, "RAY_AUTH_MODE")}
    struck = Carrier("sweep", tmp_path / "struck", own)
    process = struck.start(*OPTIONS, "--at-once", "1")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if struck.home.clusters.exists():
            with Ledger.open(struck.home.ledger, migrate=False) as ledger:
                if any(run.id != shown["sweep"] and run.iteration > 0 for run in ledger.runs.list()):
                    break
        time.sleep(0.05)
    kill_head(struck.home)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert chain(struck.home, shown["sweep"]) == chain(plain.home, shown["sweep"])
    assert not list(struck.home.folder.glob("*/supervisor/ray")), "no run had a head of its own"
    assert not [folder for folder in struck.home.clusters.iterdir() if folder.is_dir()]
