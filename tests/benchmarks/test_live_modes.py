"""`benchmarks.asynchrony`: what the simulator repeats of a real run is what the run drew."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.asynchrony.live import compared, drawn_by_iteration, wave_of
from tests.flows.tools import Driver
from tests.recovery.nursery import Nursery
from yatt_core.spec import RunSpec

CONTINUOUS = (
    "virtual.yaml",
    "iterations=6",
    "data.prompts_per_iteration=4",
    "evaluation.every=0",
    "checkpoints.every=100",
    "retention.experience=all",
    "rollout.engine.max_num_seqs=64",
    "rollout.engine.sigma=1.0",
)
TAIL = "rollout.tail={factor: 1.5, step_tokens: 16, max_iterations: 3}"


def test_a_response_that_goes_on_reads_its_tokens_again_and_a_prompt_is_read_once() -> None:
    wave = wave_of([(10, [(0, 5), (0, 6)]), (20, [(7, 3), (9, 0), (4, 2)])])
    drawn = [(each.group, each.first, each.prompt, each.turns) for each in wave.samples]
    assert drawn == [(0, True, 10, (5,)), (0, False, 10, (6,)), (1, True, 27, (3,)), (1, True, 24, (2,))]


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.parametrize("changes", [(TAIL,), ("asynchrony.lag=1",)], ids=["tail", "lag"])
def test_the_simulator_repeats_all_that_a_run_drew(tmp_path: Path, nursery: Nursery, changes: tuple[str, ...]) -> None:
    driver = Driver(tmp_path / "runs", nursery)
    run = driver.create(*CONTINUOUS, *changes)
    driver.drive(run)
    folder = driver.home.run_folder(run)
    with driver.ledger() as ledger:
        spec = RunSpec.model_validate(ledger.runs.revision(run).spec)
        drawn = drawn_by_iteration(ledger, folder, spec)
        thrown = sum(value for _, value in ledger.metrics.history(run, "tail/thrown_away_tokens"))
        found = list(compared(ledger, folder, spec))
    new = sum(sample.response for each in drawn.values() for wave in each.rounds for sample in wave.samples)
    assert new == sum(each.learnt for each in drawn.values()) + thrown > 0
    assert len(found) == 3 and all(each.simulated > 0.0 and each.measured > 0.0 for each in found)
