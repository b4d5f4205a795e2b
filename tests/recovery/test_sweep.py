"""The chained sweep: every failpoint of driver and actors kills once, and the run ends as if nothing had happened.

The process that resumes from one failpoint dies at the next one that has not killed yet; the chain ends with the
process that reaches the end of the run. All of them attach to one Ray head and one Prefect server. Every fortieth
process finds no actors, and so does one after each commit that must then be replayed.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.flows.runs.test_exact import check_each_point_once
from tests.flows.tools import Driver, same_result
from tests.postgresql import Server
from tests.recovery.conftest import Bed

SECONDS = 120.0
LONGEST = 400
COLD_EVERY = 40
BUDGETS = (
    "recovery.budgets.infrastructure=1000", "recovery.budgets.data=1000", "recovery.quarantine_after=1000",
    "recovery.budgets.lost_drivers_per_hour=1000",
)  # fmt: skip
VIRTUAL = (
    "iterations=6", "checkpoints.every=2", "evaluation.every=2", "evaluation.sampling={samples: 2, pass_at: [2]}",
    "data.logical_shards=2", "data.held_out=4", "rollout.batch_samples=8",
    "rollout.engine.clock_factor=1000", "trainer.engine.clock_factor=1000", *BUDGETS,
)  # fmt: skip
WAVES = (
    "dynamic_sampling.kind=valid_group", "dynamic_sampling.max_waves=2",
    'rewards.parts=[{name: sparse, function: "tests.flows.reward_functions:sparse", options: {share: 0.3}}]',
)  # fmt: skip
TORCH = ("checkpoints.every=2", "trainer.sync_bucket_bytes=4096", "rollout.batch_samples=4", *BUDGETS)
AHEAD = ("asynchrony.lag=1", "data.prompts_per_iteration=4", "rollout.in_flight=9", "rollout.max_slices=3")
"""Collected ahead, and in slices."""
VIRTUAL_AHEAD = (*AHEAD, "rollout.slice_tokens=8", "rollout.engine.sigma=1.0")
TORCH_AHEAD = (
    *AHEAD, "iterations=5", "rollout.slice_tokens=3", "data.logical_shards=3", "data.held_out=4",
    "algorithm.importance_correction={kind: truncate, cap: 2.0}",
)  # fmt: skip
TORCH_BFLOAT16 = ("rollout.engine.dtype=bfloat16", "trainer.engine.dtype=bfloat16")
REPLAY = "driver dies: before flows.phases.recovery.replay"
NEVER_MISSING = (
    "driver dies: before COMMIT of db.write.commit.Commits.commit",
    "driver dies: after COMMIT of db.write.commit.Commits.commit",
    "driver dies: after COMMIT of db.write.lease.Leases.take",
    "driver dies: after COMMIT of db.write.phases.Phases.dispatch",
    "driver dies: an item of WaveCollection.receipts",
    "driver dies: before COMMIT of db.write.records.Records.wave",
    "driver dies: after COMMIT of db.write.records.Records.wave",
    "driver dies: before COMMIT of db.write.records.Records.settle_wave",
    "driver dies: after COMMIT of db.write.records.Records.settle_wave",
    "driver dies: before RunActors.sync",
    "driver dies: after RunActors.learn",
    "driver dies: after MlflowTracker.deliver",
    "driver dies: before COMMIT of db.write.runs.Runs.set_mlflow_run",
    REPLAY,
    "driver dies: after DriverSession.close",
    "actor dies: after TrainerActor.learn",
    "actor dies: yatt_core.experience.chunks.write_chunk: rename of batch-#.responses.arrow",
    "driver dies while an actor is at: yatt_core.experience.chunks.write_chunk: rename of batch-#.scores.arrow",
    "driver dies while an actor is at: yatt_core.experience.shard_log.ShardLog.seal: rename of manifest.json",
    "driver dies while an actor is at: yatt_core.checkpoints.publish.publish_checkpoint: rename of b#-i#.t#",
)

DIGEST_SYNC = ("actor dies: after RolloutActor.begin_update", "actor dies: after RolloutActor.take_digest")
DIRECT_SYNC = ("actor dies: after TorchRolloutEngine.take", "actor dies: after TrainerActor.send")
"""Where virtual engines take the digest of weights, and others the weights themselves."""


@pytest.mark.timeout(1500)
def test_killed_once_at_a_failpoint_of_each_kind_the_run_ends_with_the_same_bits(driver: Driver, bed: Bed) -> None:
    """Except replay, which needs a death after an unsaved commit. `test_killed_commits` kills at every transaction."""
    kept = "|".join(re.escape(place) for place in (*NEVER_MISSING, *DIGEST_SYNC) if place != REPLAY)
    sweep(driver, bed, "virtual.yaml", (*VIRTUAL, *WAVES), DIGEST_SYNC, spared=f"^(?!{kept})")


@pytest.mark.verify
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("more", [WAVES, VIRTUAL_AHEAD], ids=["in waves", "with a lag and slices"])
def test_killed_once_at_every_failpoint_the_run_ends_with_the_same_bits(
    driver: Driver, bed: Bed, more: tuple[str, ...]
) -> None:
    sweep(driver, bed, "virtual.yaml", (*VIRTUAL, *more), DIGEST_SYNC)


@pytest.mark.verify
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("database", "more"),
    [("sweep", ()), ("sweep_ahead", TORCH_AHEAD), ("sweep_bfloat16", TORCH_BFLOAT16)],
    ids=["in turn", "with a lag and slices", "in bfloat16"],
)
def test_on_torch_engines_and_postgresql_too(
    tmp_path: Path,
    bed: Bed,
    postgresql: Server,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    more: tuple[str, ...],
) -> None:
    address = postgresql.create(database)
    monkeypatch.setenv("YATT_LEDGER", address)
    driver = Driver(tmp_path / "runs", bed.nursery, {"YATT_LEDGER": address})
    sweep(driver, bed, "torch.yaml", (*TORCH, *more), DIRECT_SYNC)


def sweep(
    driver: Driver, bed: Bed, spec: str, overrides: tuple[str, ...], sync: tuple[str, ...], spared: str = "(?!)"
) -> None:
    """Runs the chain and compares.

    sync: failpoints that the weights' way to the engines must reach.
    spared: regular expression of failpoints that neither kill nor must be reached.
    """
    quiet = driver.create(spec, *overrides)
    struck = driver.create(spec, *overrides)
    assert bed.nursery.start(driver.folder, quiet, None, driver.environment).wait(SECONDS) == 0
    (bed.failpoints / "published").unlink(missing_ok=True)
    (bed.failpoints / "used").write_text("")
    (bed.failpoints / "spared").write_text(spared)
    (bed.failpoints / "armed").write_text(str(driver.home.run_folder(struck)))
    try:
        incarnations = _chain(driver, bed, struck)
    finally:
        (bed.failpoints / "armed").unlink()
    places = (bed.failpoints / "used").read_text().splitlines()
    sys.stderr.write(f"{len(places)} failpoints, {incarnations} drivers\n")
    expected = {place for place in (*NEVER_MISSING, *sync) if not re.search(spared, place)}
    assert not (missing := expected - set(places)), missing
    assert len(places) == len(set(places))
    assert same_result(driver.results(struck), driver.results(quiet))
    check_each_point_once(driver, struck)
    check_the_ledger(driver, struck)
    assert not published_twice(bed.failpoints / "published"), "no shard may be sealed twice"


def _chain(driver: Driver, bed: Bed, run: str) -> int:
    """Drives the run until a process reaches its end; returns the number of processes."""
    cold_at: set[int] = set()
    for number in range(1, LONGEST):
        started = time.monotonic()
        incarnation = bed.nursery.start(driver.folder, run, bed.failpoints, driver.environment)
        code = incarnation.wait(SECONDS)
        last = (bed.failpoints / "used").read_text().splitlines()[-1]
        sys.stderr.write(f"{number} {time.monotonic() - started:.2f} s {code} {last}\n")
        if code == 0:
            return number
        assert code == -signal.SIGKILL, f"driver {number} ended with {code}:\n{incarnation.output}"
        if number % COLD_EVERY == 0 or _first_death_after_an_unsaved_commit(driver, run, cold_at):
            driver.end_actors(run)
    raise AssertionError(f"{LONGEST} drivers did not finish the run")


def _first_death_after_an_unsaved_commit(driver: Driver, run: str, seen: set[int]) -> bool:
    """Returns True once per commit without a checkpoint: if its actors are gone too, it must be replayed."""
    with driver.ledger() as ledger:
        iteration = ledger.runs.find(run).iteration
        kept = {row.iteration for row in ledger.records.checkpoints(run)}
    first = iteration > 0 and iteration not in kept | seen
    seen.add(iteration)
    return first


def check_the_ledger(driver: Driver, run: str) -> None:
    """Checks that every iteration is committed, the audit chain is sound, and nothing is undelivered."""
    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        assert row.state == "completed"
        broken = ledger.events.verify(run)
        commits = [ledger.commits.at(run, iteration) for iteration in range(row.iteration + 1)]
        waiting, _ = ledger.outbox.counts(run)
    assert all(commits) and waiting == 0
    assert broken is None, f"the audit chain is broken at {broken}"


def published_twice(file: Path) -> list[str]:
    """Returns the shards whose manifest was published more than once, in any term."""
    times = Counter(line.rpartition(".t")[0] for line in file.read_text().splitlines())
    return [shard for shard, count in times.items() if count > 1]
