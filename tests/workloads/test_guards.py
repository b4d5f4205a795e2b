"""Rules of a spec's guards on metrics of workloads: a class, rows and diffusion, with samplers or without, obey them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from db.write.alarms import AlarmRow
from flows.reports.audit import verify_run
from tests.matrix import in_verify
from tests.needs import NEEDS_DIFFUSERS
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from tests.workloads.test_kinds import rows_file
from yatt_core.errors import ExitCode

COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"
DRAWING = ROOT / "tests" / "workloads" / "diffusion" / "drawing.yaml"
SAMPLED = ("workload.sampled_by=rollout", "rollout.engine.instances=2")
LENGTH = ("iterations=3", "checkpoints.every=1", "evaluation.every=0")
BEYOND_REACH = 1e6
"""No metric of these runs is as large, so that a rule that asks for it is always broken."""


@dataclass(frozen=True)
class Watched:
    """A workload, and the metric of it that a guard watches."""

    metric: str
    overrides: tuple[str, ...] = ()

    def run(self, folder: Path, *more: str) -> OwnRun:
        spec = DRAWING if self.metric == "reward" else COUNTING
        if self.metric.startswith("preference/"):
            spec = rows_file(folder / "data", "rows")
        return OwnRun.of(folder / "home", spec, *LENGTH, *self.overrides, *more)


WATCHED = {
    "class": Watched("loss"),
    "rows": Watched("preference/margin"),
    "diffusion": Watched("reward"),
    "samplers": Watched("reward", SAMPLED),
}


def each(*quick: str) -> list[Any]:
    """Returns the names of all workloads; those that are not quick are tried in `make verify` alone."""
    return [
        pytest.param(
            name,
            marks=[
                *([NEEDS_DIFFUSERS] if WATCHED[name].metric == "reward" else []),
                *([] if name in quick else [pytest.mark.verify]),
            ],
        )
        for name in WATCHED
    ]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def guard(metric: str, window: int, action: str) -> str:
    rule = f"{{name: low, metric: {metric}, at_least: {BEYOND_REACH}, window: {window}, action: {action}}}"
    return f"guards.custom=[{rule}]"


def alarms(run: OwnRun) -> list[AlarmRow]:
    """Returns a run's alarms by its own rule, after an audit."""
    with run.ledger() as ledger:
        report = verify_run(ledger, run.run, run.folder, None)
        assert report.sound, report.disagreement
        return [alarm for alarm in ledger.alarms.of(run.run) if alarm.rule == "low"]


def digests(run: OwnRun) -> list[str | None]:
    results = run.results()
    return [results.weights_digest, results.experience_digest, results.metrics_digest]


@pytest.mark.parametrize("name", each("class"))
def test_a_guard_on_a_metric_pauses_the_run_and_a_resume_ends_as_if_it_had_not(name: str, tmp_path: Path) -> None:
    watched = WATCHED[name]
    paused = watched.run(tmp_path / "paused", guard(watched.metric, 2, "pause"))
    outcome = paused.drive()
    assert outcome is not None
    assert (outcome.state, outcome.iteration, outcome.exit_code) == ("paused", 2, ExitCode.PAUSED)
    assert f"guard low: {watched.metric} was " in outcome.reason
    with paused.ledger() as ledger:
        assert ledger.records.checkpoints(paused.run)[0].iteration == 2
        values = ledger.metrics.history(paused.run, watched.metric)
    outcome = paused.drive(cold=True)
    assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 3)
    (alarm,) = alarms(paused)
    assert (alarm.action, alarm.iteration) == ("pause", 2)
    assert alarm.evidence["window"] == [list(point) for point in values]
    calm = watched.run(tmp_path / "calm")
    calm.drive()
    assert digests(paused) == digests(calm) and None not in digests(calm)


@pytest.mark.parametrize("killed", [True, *in_verify(False)])
@pytest.mark.parametrize("name", each("class", "rows", "diffusion"))
def test_a_guard_on_a_metric_rolls_back_once_and_then_pauses(name: str, killed: bool, tmp_path: Path) -> None:
    """The second driver is killed on the new branch, which it has opened. The rule is broken there too."""
    watched = WATCHED[name]
    run = watched.run(tmp_path, guard(watched.metric, 2, "rollback"), "guards.rollback_limit=1")
    for place in ("commit:2", "after learn:1") if killed else ():
        assert run.drive(place, cold=True) is None, f"nobody died at {place}"
    outcome = run.drive(cold=True)
    assert outcome is not None
    assert (outcome.state, outcome.iteration, outcome.exit_code) == ("paused", 2, ExitCode.PAUSED)
    assert "1 rollback to iteration 0 did not help" in outcome.reason
    outcome = run.drive()
    assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 3)
    assert [(alarm.action, alarm.branch) for alarm in alarms(run)] == [("rollback", 0), ("rollback", 1), ("pause", 1)]
    with run.ledger() as ledger:
        branches = [(row.number, row.parent_iteration) for row in ledger.overview.branches(run.run)]
        left, kept = (ledger.commits.at(run.run, 2, branch) for branch in (0, 1))
    assert branches == [(0, None), (1, 0)]
    assert left is not None and kept is not None
    assert kept.weights_digest != left.weights_digest, "the branch learns from what the first one did not draw"
    assert kept.state["cursor"] != left.state["cursor"]
