"""A retrieval run that is killed in every phase, in every stage, ends with the bits of one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.workloads.tests.killed import resumed_on_another_number
from examples.workloads.tests.retrieval.ranks import SMALL
from flows.reports.audit import verify_run
from tests.workloads.in_process import OwnRun

SPECS = Path(__file__).parents[2] / "specs"
KILLED_AT = (
    "start:0", "evaluate:0", "prepare:1", "after prepare:1", "learn:2", "after learn:2", "checkpoint:2", "after checkpoint:2",
    "after prepare:3", "after learn:3", "commit:3", "after evaluate:3", "recover:2", "after learn:4", "after prepare:5",
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("retrieval_mined.yaml", {"method": "self", "mined": 1, "mine_every": 2}),
        pytest.param("retrieval.yaml", {"method": "cascade", "first": 1, "cross": 1}, marks=pytest.mark.verify),
    ],
)
@pytest.mark.parametrize("ranks", [(2, 1), pytest.param((1, 3), marks=pytest.mark.verify)])
def test_resumed_on_another_number_of_ranks(
    spec: str, settings: dict[str, Any], ranks: tuple[int, int], tmp_path: Path
) -> None:
    changes = [f"workload.settings={json.dumps({**SMALL, **settings})}"]
    resumed_on_another_number(tmp_path, SPECS / spec, changes, ranks)


def run_of(folder: Path, spec: str, settings: dict[str, Any]) -> OwnRun:
    changes = ("iterations=6", "checkpoints.every=2", "evaluation.every=3")
    return OwnRun.of(folder, SPECS / spec, *changes, f"workload.settings={json.dumps({**SMALL, **settings})}")


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("retrieval.yaml", {"method": "cascade", "first": 2, "cross": 1}),
        pytest.param(
            "retrieval_mined.yaml",
            {"method": "self", "mined": 1, "mine_every": 2},
            marks=pytest.mark.verify,
        ),
    ],
)
def test_killed_in_every_phase(spec: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The rank outlives its driver every other time; otherwise the next one restores and replays."""
    undisturbed = run_of(tmp_path / "undisturbed", spec, settings)
    undisturbed.drive()
    struck = run_of(tmp_path / "struck", spec, settings)
    reached = [place for number, place in enumerate(KILLED_AT) if struck.drive(place, cold=number % 2 == 1) is None]
    outcome = struck.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"
    assert reached == list(KILLED_AT)
    found = [run.results() for run in (struck, undisturbed)]
    assert found[0].weights_digest == found[1].weights_digest is not None
    assert found[0].metrics_digest == found[1].metrics_digest is not None
    with struck.ledger() as ledger:
        report = verify_run(ledger, struck.run, struck.folder, None)
    assert report.sound, report.disagreement
