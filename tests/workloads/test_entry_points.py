"""A workload that an installed distribution offers: found by its name, run, and vouched for by its package's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from db.ledger import Ledger
from flows.run.creation import current_spec
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.algorithms.own import WORKLOADS, source_digest
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec

SPEC = ROOT / "tests" / "workloads" / "counting.yaml"
MODULE = "from tests.workloads.counting import Counting\n\n\nclass Offered(Counting):\n    pass\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs a distribution with one workload, called `offered`; returns the folder of its package."""
    site = tmp_path / "site"
    folder = site / "offered_trainings"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "trained.py").write_text(MODULE)
    told = site / "offered_trainings-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-trainings\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{WORKLOADS}]\noffered = offered_trainings.trained:Offered\n")
    monkeypatch.syspath_prepend(str(site))
    return folder


def test_a_workload_runs_by_the_name_of_its_entry_point_and_its_package_is_vouched_for(
    package: Path, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    run = OwnRun.of(tmp_path / "named", SPEC, "workload.kind=offered", "exact=true")
    assert run.drive("learn:3") is None
    with Ledger.open(run.home.ledger) as ledger:
        kept = current_spec(ledger, run.run).workload
    assert (kept.kind, kept.sha256) == ("offered", source_digest("offered", WORKLOADS))
    assert kept.sha256 == source_digest("offered_trainings.trained:Offered", WORKLOADS) is not None

    (package / "further.py").write_text("RATE = 1\n")
    with pytest.raises(
        ConfigurationError, match=r"workload.kind: the source of offered has changed: .* restore it, or start a new run"
    ):
        run.drive(cold=True)
    (package / "further.py").unlink()
    outcome = run.drive(cold=True)
    assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 4)
    plain = OwnRun.of(tmp_path / "plain", SPEC)
    plain.drive()
    assert run.results().weights_digest == plain.results().weights_digest is not None


def test_a_name_that_nobody_offers_is_refused_with_those_that_are_known(package: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"workload.kind: 'offers' is not an entry point of 'yatt.workloads'; known: .*offered.*; or write package.module",
    ):
        load_spec(SPEC, ["workload.kind=offers"])
