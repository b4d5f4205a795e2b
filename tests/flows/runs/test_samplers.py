"""Diffusion whose images samplers draw, through real services: samplers, trainer and driver killed, on any number of samplers."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from flows.branching.branches import revise
from flows.run.creation import current_spec
from tests.flows.runs.test_diffusion import LONG, SHORT_LEASE, SPEC, STRIKES, require_same, undisturbed
from tests.flows.tools import Driver
from tests.needs import NEEDS_DIFFUSERS
from tests.recovery.parts import kill, living_actors

pytestmark = [pytest.mark.timeout(1800), NEEDS_DIFFUSERS]
SAMPLERS = (*SHORT_LEASE, "workload.sampled_by=rollout", "rollout.engine.instances=2")
KILLED_AT = (
    "start:0", "sft:0", "sync:0", "evaluate:0", "commit_start:0", "collect:1", "prepare:1", "learn:1", "sync:1", "collect:2",
    "checkpoint:2", "commit:2", "recover:1", "collect:3", "learn:3", "sync:3", "evaluate:3", "commit:3",
)  # fmt: skip


def test_killed_while_samplers_draw_and_resumed_on_one_it_has_the_bits_of_a_run_without(
    driver: Driver, tmp_path: Path
) -> None:
    run = driver.create(SPEC, *SAMPLERS)
    driver.drive_until_killed(run, "collect:2")
    assert sorted(name for name in living_actors(driver.home.run_folder(run)) if "-" in name) == [
        "rollout-0", "rollout-1", "trainer-0"
    ]  # fmt: skip
    revise(driver.home, run, ["rollout.engine.instances=1"])
    driver.drive(run)
    require_same(driver, run, undisturbed(tmp_path))
    with driver.ledger() as ledger:
        synced = [
            row.receipt["engines"]
            for number in (1, 3)
            for row in ledger.phases.attempts(run, 0, number)
            if row.phase == "sync"
        ]
    assert [[engine["instance"] for engine in engines] for engines in synced] == [[0, 1], [0]]
    assert len({engine["bytes"] for engines in synced for engine in engines} - {0}) == 1


@pytest.mark.verify
def test_on_devices_of_their_own_samplers_draw_the_same_bits(driver: Driver, tmp_path: Path) -> None:
    """One kill leaves samplers and ranks alive, the other loses them; then both share their devices."""
    run = driver.create(SPEC, *SAMPLERS, "placement.mode=split")
    with driver.ledger() as ledger:
        assert current_spec(ledger, run).devices == 3, "two of the samplers, and one of the rank"
    driver.drive_until_killed(run, "collect:1")
    driver.drive_until_killed(run, "learn:2")
    driver.end_actors(run)
    driver.drive(run, "--until", "2")
    revise(driver.home, run, ["placement.mode=colocate"])
    driver.drive(run)
    require_same(driver, run, undisturbed(tmp_path))


@pytest.mark.verify
def test_killed_in_each_phase_it_ends_with_the_same_bits(driver: Driver, tmp_path: Path) -> None:
    run = driver.create(SPEC, *SAMPLERS)
    for number, place in enumerate(KILLED_AT):
        driver.drive_until_killed(run, place)
        if number % 2 == 1 or place == "commit:2":  # before `recover`, so that there is something to recover
            driver.end_actors(run)
    driver.drive(run)
    require_same(driver, run, undisturbed(tmp_path))


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("adapters", [(), ("workload.settings.adapters={rank: 2, alpha: 4}",)], ids=["full", "lora"])
def test_killed_at_random_moments_it_ends_with_the_bits_of_one_rank(
    adapters: tuple[str, ...], seed: int, driver: Driver, tmp_path: Path
) -> None:
    """Of its driver, its samplers and its ranks; an actor that is lost alone is replaced by the driver that lives."""
    chance = random.Random(seed)
    run = driver.create(SPEC, *SAMPLERS, *LONG, *adapters, "trainer.engine.ranks=2")
    folder = driver.home.run_folder(run)
    process = driver.start(run)
    for _ in range(STRIKES):
        time.sleep(chance.uniform(0.5, 10))
        if process.ended() is not None:
            break
        actors = sorted(living_actors(folder).items())
        victim = chance.choice(["driver", "actor", "both"])
        if victim != "driver" and actors:
            kill(chance.choice(actors)[1])
        if victim != "actor":
            process.signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
            process = driver.start(run)
    assert process.wait(300) == 0, process.output
    require_same(driver, run, undisturbed(tmp_path, *LONG, *adapters))
