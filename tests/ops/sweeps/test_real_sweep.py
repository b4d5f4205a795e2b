"""A real sweep on virtual engines: killed with kill -9, a driver and the command, it decides as one that was not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from flows.sweeps.record import PROMOTION, TRIAL, VALUE, WINNER
from tests.carrier import SECONDS, Carrier
from tests.services import ROOT

OPTIONS = (
    str(ROOT / "configs" / "virtual.yaml"), "--random", "--asha", "--trials", "3", "--reduction", "2", "--workers", "2",
    "--over", "rollout.temperature=0.5..1.5", "--over", "rollout.max_new_tokens=16,32", "--metric", "reward/mean",
    "--set", "tracking.enabled=false", "--set", "iterations=4", "--set", "evaluation.every=2",
)  # fmt: skip


def chain(home: Home, sweep: str) -> list[tuple[str, Any]]:
    with Ledger.open(home.ledger, migrate=False) as ledger:
        links = ledger.events.links(sweep)
    return [(link.kind, link.body) for link in links if link.kind in (TRIAL, PROMOTION, VALUE, WINNER)]


@pytest.mark.verify
@pytest.mark.timeout(3 * SECONDS)
def test_a_real_sweep_that_was_killed_decides_as_one_that_was_not(
    tmp_path: Path, service_environment: Mapping[str, str]
) -> None:
    plain, killed = (Carrier("sweep", tmp_path / name, service_environment) for name in ("plain", "killed"))
    shown = plain.finish(*OPTIONS)
    sweep = shown["sweep"]
    assert not shown["following"] and shown["winner"] is not None and len(shown["trials"]) == 3
    process = killed.start(*OPTIONS, "--at-once", "1")
    killed.kill_when(process, lambda ledger: any(run.id != sweep and run.iteration > 0 for run in ledger.runs.list()))
    killed.kill_a_driver()
    killed.kill_when(killed.start("resume", sweep), lambda ledger: len(ledger.events.of_kind(sweep, VALUE)) > 1)
    assert killed.finish("resume", sweep) == shown
    assert chain(killed.home, sweep) == chain(plain.home, sweep)
