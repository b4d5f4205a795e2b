"""Sweeps and pipelines of workloads: the real plan, record and tools, over runs that this process drives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from db.ledger import Ledger
from flows.pipelines.checks import checked_pipeline
from flows.pipelines.record import start_pipeline
from flows.pipelines.runner import PipelineRunner
from flows.run.home import Home
from flows.sweeps.record import TRIAL, VALUE, WINNER, SweepRecord, create_sweep
from flows.sweeps.runner import SweepRunner
from flows.sweeps.spec import load_sweep, parse_sweep
from flows.sweeps.starts import Starts
from ops.pipelines.work import tools_of
from tests.workloads.driven import Drive
from tests.workloads.test_contract import spec_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import yaml_text

FACTOR = "workload.tunable.factor"
SPACING = "workload.settings.spacing"
RUN: dict[str, Any] = {
    "name": "staged",
    "iterations": 4,
    "workload": {"kind": "tests.workloads.counting:Staged"},
    "trainer": {"engine": {"kind": "torch", "ranks": 1}},
    "checkpoints": {"every": 2},
    "evaluation": {"every": 2},
    "tracking": {"enabled": False},
}
SWEEP: dict[str, Any] = {
    "base": "run.yaml",
    "space": {FACTOR: {"values": [3, 1, 4]}},
    "sampler": "grid",
    "asha": {"reduction": 2},
    "metric": "evaluation/mean",
}
JOBS: dict[str, Any] = {
    "base": {"kind": "train", "spec": "run.yaml"},
    "next": {
        "kind": "train",
        "spec": "run.yaml",
        "set": ["name=next", "workload.start.path=${jobs.base.checkpoint}", f"{FACTOR}=2"],
    },
    "evaluation": {"kind": "evaluate", "of": "next"},
    "gate": {"kind": "gate", "of": "evaluation", "at_least": {"mean": 1.0}},
    "champion": {"kind": "promote", "of": "next", "needs": ["gate"]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    (tmp_path / "run.yaml").write_text(yaml_text(RUN))
    return tmp_path


def decided(folder: Path, name: str, killed_at: str = "") -> tuple[list[tuple[str, Any]], Drive]:
    """Returns what a sweep has decided, and what it had driven."""
    file = folder / "sweep.yaml"
    file.write_text(yaml_text(SWEEP))
    sweep, run = load_sweep(file)
    home = Home(folder / name)
    drive = Drive(home, killed_at)
    first = create_sweep(home, sweep, run, "ann")
    with Ledger.open(home.ledger) as ledger:
        SweepRunner(home, ledger, first, drive, lambda text: None).run()
        assert SweepRecord.of(ledger, first).starts.keys == ()
        links = ledger.events.links(first)
    return [(link.kind, link.body) for link in links if link.kind in (TRIAL, VALUE, WINNER)], drive


def test_trials_of_a_tunable_setting_share_a_beginning_and_the_best_wins(folder: Path) -> None:
    chain, drive = decided(folder, "undisturbed")
    kind, winner = chain[-1]
    assert kind == WINNER and winner["setting"] == {FACTOR: 4} and winner["iteration"] == 4
    assert sorted(until for _, until in drive.driven) == [0, 2, 2, 2, 4], "one goes on of two or three"
    struck, drive = decided(folder, "struck", "after learn:2")
    assert struck == chain and not drive.killed_at, "a driver was killed"


def test_settings_that_inputs_depend_on_have_beginnings_of_their_own() -> None:
    space = {SPACING: {"values": [1, 2]}, FACTOR: {"low": 1.0, "high": 3.0}}
    domains = parse_sweep({"base": "run.yaml", "space": space}, "sweep").domains
    starts = Starts.of(spec_of("workload.kind=tests.workloads.counting:Staged"), domains)
    assert starts.keys == (SPACING,)
    assert starts.own_overrides({SPACING: 2, FACTOR: 1.5}) == [f"{FACTOR}=1.5"]


def pipeline(folder: Path, jobs: dict[str, Any]) -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(yaml_text({"name": "stages", "jobs": jobs}))
    return file


def run_pipeline(folder: Path, drive: Drive) -> tuple[str, str]:
    file = folder / "pipeline.yaml"
    row = start_pipeline(drive.home, checked_pipeline(file), folder, "ann")
    with Ledger.open(drive.home.ledger) as ledger:
        clusters: Any = None  # of processes, of which there are none
        tools = tools_of(drive.home, ledger, clusters, at_once=1, by="ann")
        own = replace(tools, drives=lambda: drive)
        return row.id, PipelineRunner(drive.home, ledger, row.id, own).run()


def test_a_stage_goes_on_from_the_one_before_is_gated_by_its_own_figures_and_promoted(folder: Path) -> None:
    pipeline(folder, JOBS)
    drive = Drive(Home(folder / "runs"), "after learn:3")
    name, state = run_pipeline(folder, drive)
    with Ledger.open(drive.home.ledger) as ledger:
        jobs = ledger.pipelines.jobs(name)
        means = {run: dict(ledger.metrics.history(run, "evaluation/mean")) for run in ("staged-1", "next-1")}
        promoted = ledger.aliases.pointing("next-1")["champion"].iteration
    assert state == "finished" and {row.state for row in jobs.values()} == {"done"} and not drive.killed_at
    assert means["next-1"][0] == means["staged-1"][4]
    assert jobs["evaluation"].outputs["figures"]["mean"] == means["next-1"][4] and promoted == 4
    driven = list(drive.driven)
    name, state = run_pipeline(folder, drive)
    with Ledger.open(drive.home.ledger) as ledger:
        assert {row.state for row in ledger.pipelines.jobs(name).values()} == {"skipped"}
    assert drive.driven == driven


def test_jobs_that_take_what_a_workload_does_not_have_are_refused_before_anything_begins(folder: Path) -> None:
    suite = {"name": "tasks", "sets": []}
    (folder / "suite.yaml").write_text(yaml_text(suite))
    jobs = {
        "base": JOBS["base"],
        "next": {**JOBS["next"], "set": ["workload.start.path=${jobs.base.model}"]},
        "out": {"kind": "export", "of": "base"},
        "suite": {"kind": "evaluate", "of": "base", "suite": "suite.yaml"},
    }
    with pytest.raises(ConfigurationError) as refused:
        checked_pipeline(pipeline(folder, jobs))
    said = str(refused.value)
    assert (
        "jobs.next.set.0: 'base' exports no model, since it trains the workload tests.workloads.counting:Staged" in said
    )
    assert "expected workload.start.path=${jobs.base.checkpoint}" in said
    assert "jobs.out.of: 'base' exports no model" in said and "leave the job out" in said
    assert "jobs.suite.suite: 'base' answers no tasks" in said
