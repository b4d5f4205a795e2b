"""Diffusion through real services: killed in each phase and at random moments, from the queue, in a sweep and in a pipeline."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from db.ledger import Ledger
from db.write.queueing import Submission
from flows.branching.branches import fork, revise
from flows.queueing.pools_file import pools_file
from flows.reports.audit import verify_run
from flows.reports.lineage import lineage_of
from flows.run.results import RunResults
from flows.sweeps.record import PROMOTION, TRIAL, VALUE, WINNER
from tests.carrier import SECONDS, Carrier
from tests.flows.queueing.test_twelve_runs import start_scheduler
from tests.flows.tools import Driver
from tests.needs import NEEDS_DIFFUSERS
from tests.recovery.parts import kill, living_actors
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from yatt_core.spec.reading.documents import yaml_text
from yatt_core.workloads.saved import read_state

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900), NEEDS_DIFFUSERS]
DRAWING = ROOT / "tests" / "workloads" / "diffusion" / "drawing.yaml"
SPEC = "../workloads/diffusion/drawing.yaml"
SHORT_LEASE = ("recovery.lease_seconds=5.0", "recovery.phase_deadline_seconds=60", "tracking.enabled=false")
KILLED_AT = (
    "start:0", "sft:0", "evaluate:0", "commit_start:0", "prepare:1", "learn:1", "checkpoint:2", "commit:2", "recover:1",
    "learn:3", "evaluate:3", "commit:3",
)  # fmt: skip
LONG = ("iterations=16", "checkpoints.every=5", "evaluation.every=4")
STRIKES = 6


def undisturbed(folder: Path, *changes: str) -> RunResults:
    """Returns the results of the same run in this process, on one rank."""
    torch.set_num_threads(1)
    own = OwnRun.of(folder / "undisturbed", DRAWING, *changes)
    own.drive()
    return own.results()


def require_same(driver: Driver, run: str, expected: RunResults) -> None:
    """Asserts that a run has the expected weights and metrics, and a sound audit."""
    found = driver.results(run)
    assert found.weights_digest == expected.weights_digest is not None
    assert found.metrics_digest == expected.metrics_digest is not None
    with driver.ledger() as ledger:
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
    assert report.sound, report.disagreement


def test_killed_in_each_phase_it_ends_with_the_same_bits(driver: Driver, tmp_path: Path) -> None:
    run = driver.create(SPEC, *SHORT_LEASE)
    for number, place in enumerate(KILLED_AT):
        driver.drive_until_killed(run, place)
        if number % 2 == 1 or place == "commit:2":  # before `recover`, so that there is something to recover
            driver.end_actors(run)
    driver.drive(run)
    require_same(driver, run, undisturbed(tmp_path))


def test_divided_over_two_ranks_killed_it_ends_with_the_same_bits_and_one_rank_goes_on_within_tolerance(
    driver: Driver,
) -> None:
    """One kill leaves the ranks alive in the middle of an update, the other loses all of them."""
    own = ("workload.kind=tests.workloads.diffusion.sharded_ranks:BrightSharded", "trainer.engine.ranks=2")
    calm = driver.create(SPEC, *SHORT_LEASE, *own)
    driver.drive(calm)
    struck = driver.create(SPEC, *SHORT_LEASE, *own)
    driver.drive_until_killed(struck, "learn:2")
    driver.drive_until_killed(struck, "learn:3")
    driver.end_actors(struck)
    driver.drive(struck)
    require_same(driver, struck, driver.results(calm))
    alone = fork(driver.home, calm, 2, ["trainer.engine.ranks=1"]).run
    driver.drive(alone)
    with driver.ledger() as ledger:
        (mark,) = lineage_of(ledger, driver.home, alone).drift
        newest = [ledger.records.checkpoints(run)[0] for run in (calm, alone)]
    assert (mark["at"], mark["replayed"], mark["changes"]["layout"]) == (2, 0, ["torch x 2", "torch x 1"])
    one, other = (read_state(driver.home.run_folder(each.run) / each.folder).weights for each in newest)
    for name in one.shapes:
        torch.testing.assert_close(other.whole(name), one.whole(name), rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments_on_two_ranks_it_ends_with_the_bits_of_one(
    seed: int, driver: Driver, tmp_path: Path
) -> None:
    """Of its driver and its ranks; a rank that is lost alone is replaced by the driver that lives."""
    chance = random.Random(seed)
    run = driver.create(SPEC, *SHORT_LEASE, *LONG, "trainer.engine.ranks=2")
    folder = driver.home.run_folder(run)
    process = driver.start(run)
    for _ in range(STRIKES):
        time.sleep(chance.uniform(0.5, 10))
        if process.ended() is not None:
            break
        ranks = sorted(living_actors(folder).values())
        victim = chance.choice(["driver", "rank", "both"])
        if victim != "driver" and ranks:
            kill(chance.choice(ranks))
        if victim != "rank":
            process.signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
            process = driver.start(run)
    assert process.wait(SECONDS) == 0, process.output
    require_same(driver, run, undisturbed(tmp_path, *LONG))


def test_another_number_of_ranks_goes_on_with_the_same_bits_and_its_drift_is_recorded(
    driver: Driver, tmp_path: Path
) -> None:
    run = driver.create(SPEC, *SHORT_LEASE)
    driver.drive(run, "--until", "2")  # with a checkpoint of iteration 2, without which no updates may be changed
    revise(driver.home, run, ["trainer.engine.ranks=2"])
    driver.drive_until_killed(run, "learn:3")
    driver.drive(run)
    require_same(driver, run, undisturbed(tmp_path))
    with driver.ledger() as ledger:
        layouts = [link.body["changes"]["layout"] for link in ledger.events.of_kind(run, "drift")]
    assert layouts and all(layout == ["torch x 1", "torch x 2"] for layout in layouts)


def test_from_the_queue_it_is_the_same(driver: Driver, tmp_path: Path, service_environment: Mapping[str, str]) -> None:
    run = driver.create(SPEC, *SHORT_LEASE, "trainer.engine.ranks=2")
    pools_file(driver.home).write_text("pools:\n  main: {devices: 2}\n")
    with driver.ledger() as ledger:
        ledger.submissions.submit(run, Submission(("main",), "ada", "shapes", 1, 2), "ada")
        scheduler = start_scheduler(driver, service_environment)
        try:
            while any(entry.run == run for entry in ledger.queue.rows().open):
                assert scheduler.poll() is None, (driver.folder / "scheduler.log").read_text()
                time.sleep(0.2)
        finally:
            scheduler.terminate()
            scheduler.wait()
        assert {row.run: row.outcome for row in ledger.queue.ended(5)} == {run: "completed"}
    require_same(driver, run, undisturbed(tmp_path))


OPTIONS = (
    str(DRAWING), "--grid", "--asha", "--reduction", "2", "--workers", "2", "--metric", "reward",
    "--over", "workload.tunable.rate=1e-4,1e-2", "--set", "tracking.enabled=false", "--set", "iterations=4",
    "--set", "evaluation.every=2",
)  # fmt: skip


def decided(carrier: Carrier, sweep: str) -> list[tuple[str, Any]]:
    with Ledger.open(carrier.home.ledger, migrate=False) as ledger:
        links = ledger.events.links(sweep)
    return [(link.kind, link.body) for link in links if link.kind in (TRIAL, PROMOTION, VALUE, WINNER)]


def test_a_sweep_of_learning_rates_that_was_killed_decides_as_one_that_was_not(
    tmp_path: Path, service_environment: Mapping[str, str]
) -> None:
    plain, killed = (Carrier("sweep", tmp_path / name, service_environment) for name in ("plain", "killed"))
    shown = plain.finish(*OPTIONS)
    sweep = shown["sweep"]
    assert not shown["following"] and shown["winner"] is not None and len(shown["trials"]) == 2
    values = {body["value"] for kind, body in decided(plain, sweep) if kind == VALUE and body["rung"] == 0}
    assert len(values) == 2, "the rate matters"
    process = killed.start(*OPTIONS, "--at-once", "1")
    killed.kill_when(process, lambda ledger: any(run.id != sweep and run.iteration > 0 for run in ledger.runs.list()))
    killed.kill_a_driver()
    assert killed.finish("resume", sweep) == shown
    assert decided(killed, sweep) == decided(plain, sweep)


def test_a_pipeline_of_two_stages_that_was_killed_ends_with_one_champion(
    tmp_path: Path, service_environment: Mapping[str, str]
) -> None:
    shutil.copy(DRAWING, tmp_path / "drawing.yaml")
    own = ["tracking.enabled=false"]
    jobs = {
        "first": {"kind": "train", "spec": "drawing.yaml", "set": own},
        "second": {
            "kind": "train",
            "spec": "drawing.yaml",
            "set": [
                *own,
                "name=second",
                "workload.start.path=${jobs.first.checkpoint}",
                "workload.tunable={rate: 1e-3}",
            ],
        },
        "evaluation": {"kind": "evaluate", "of": "second"},
        "gate": {"kind": "gate", "of": "evaluation", "at_least": {"valid": 0.0}},
        "champion": {"kind": "promote", "of": "second", "needs": ["gate"]},
    }
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml_text({"name": "shapes", "jobs": jobs}))
    line = Carrier("pipeline", tmp_path / "runs", service_environment)
    line.kill_when(
        line.start("run", str(file)),
        lambda ledger: any(run.spec_name == "second" and run.iteration > 0 for run in ledger.runs.list()),
    )
    line.kill_a_driver()
    done = line.finish("run", str(file))
    assert done["state"] == "finished" and {job["state"] for job in done["jobs"]} == {"done"}
    with Ledger.open(line.home.ledger, migrate=False) as ledger:
        weights = {run.id: ledger.commits.at(run.id, 0) for run in ledger.runs.list()}
        last = ledger.commits.at("drawing-1", 3)
        begun = weights["second-1"]
        assert begun is not None and last is not None and begun.weights_digest == last.weights_digest
        assert ledger.aliases.pointing("second-1")["champion"].iteration == 3
        assert all(ledger.events.verify(run) is None for run in weights)
    again = line.finish("run", str(file))
    assert {job["state"] for job in again["jobs"]} == {"skipped"}
