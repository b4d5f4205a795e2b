"""A checkpoint that an operator asks for: taken after the iteration, once, whatever happens to the driver meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.flows.driver.test_outages import MINUTE, Outage
from tests.flows.simulated import BranchRunActors, Simulation
from tests.matrix import in_verify
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import CheckpointReceipt

OVERRIDES = ("iterations=6", "checkpoints.every=100", "checkpoints.keep=9")


def taken(simulation: Simulation) -> list[int]:
    with simulation.ledger() as ledger:
        return sorted(row.iteration for row in ledger.records.own_checkpoints(simulation.run))


def ask(simulation: Simulation) -> None:
    with simulation.ledger() as ledger:
        ledger.checkpoint_requests.ask(simulation.run, "before the upgrade", "alice")


def met(simulation: Simulation) -> list[int]:
    """Returns the iterations of the checkpoints that met requests, in order."""
    with simulation.ledger() as ledger:
        events = ledger.events.of_kind(simulation.run, "checkpoint_request_met")
    return [event.body["iteration"] for event in events]


def finish(simulation: Simulation) -> None:
    outcome = simulation.drive()
    assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 6)


@pytest.mark.parametrize("phase", ["learn", *in_verify("collect", "sync", "commit")])
def test_the_run_goes_on_and_takes_it_once(tmp_path: Path, phase: str) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    assert simulation.drive(killed_at=f"{phase}:3") is None
    ask(simulation)
    ask(simulation)  # changes nothing while one is pending
    finish(simulation)
    assert taken(simulation) == [0, 3, 6]
    with simulation.ledger() as ledger:
        (request,) = ledger.events.of_kind(simulation.run, "checkpoint_requested")
        (met,) = ledger.events.of_kind(simulation.run, "checkpoint_request_met")
        assert (met.body["request"], met.body["iteration"]) == (request.seq, 3)
        assert ledger.checkpoint_requests.pending(simulation.run) is None


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    "place", ["checkpoint:4", "learn:5", *in_verify("commit:4", "committed:4", "collect:5", "committed:5")]
)
def test_a_request_outlives_its_driver(tmp_path: Path, place: str, cold: bool) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    assert simulation.drive(killed_at="committed:3") is None
    ask(simulation)
    assert simulation.drive(killed_at=place) is None
    assert simulation.drive(cold=cold) is not None
    made = taken(simulation)
    assert made[0] == 0 and made[1] in (4, 5) and made[-1] == 6
    assert len(made) in (3, 4), "one more at most, if the driver died while the first was being published"
    with simulation.ledger() as ledger:
        (met,) = ledger.events.of_kind(simulation.run, "checkpoint_request_met")
        assert met.body["iteration"] == made[1] and ledger.checkpoint_requests.pending(simulation.run) is None


def test_the_weights_are_those_of_a_run_that_nobody_asked(tmp_path: Path) -> None:
    one, other = (Simulation.of(tmp_path / name, *OVERRIDES) for name in ("one", "other"))
    assert one.drive(killed_at="collect:3") is None
    ask(one)
    finish(one)
    finish(other)
    with one.ledger() as asked, other.ledger() as plain:
        for iteration in range(7):
            there, here = (ledger.commits.at(run, iteration) for ledger, run in ((plain, other.run), (asked, one.run)))
            assert there is not None and here is not None and there.weights_digest == here.weights_digest


def test_a_checkpoint_that_was_there_before_does_not_meet_the_request(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    assert simulation.drive(until=3) is not None
    simulation.cluster.clock.sleep(1.0)
    ask(simulation)
    finish(simulation)
    assert taken(simulation) == [0, 3, 4, 6] and met(simulation) == [4]


def test_the_checkpoint_of_the_last_commit_meets_a_request_from_after_it(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    assert simulation.drive(until=6, killed_at="committed:6") is None
    ask(simulation)
    finish(simulation)
    assert taken(simulation) == [0, 6] and met(simulation) == [6]


def test_a_run_that_waits_takes_it_with_the_devices_back_or_after_the_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests while it waits: the first one before the devices are given back, the second one after that."""
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    clock = simulation.cluster.clock
    outage = Outage(simulation, "collect", 30 * MINUTE)
    met_after = list[list[int]]()

    def answering(actors: BranchRunActors, dependency: str) -> bool:
        since = clock.monotonic() - outage.failed[0]
        if not met_after:
            ask(simulation)
            met_after.append([])
        elif len(met_after) == 1 and since > 10 * MINUTE:
            met_after.append(met(simulation))
            ask(simulation)
        elif len(met_after) == 2 and since > 20 * MINUTE:
            met_after.append(met(simulation))
        return since >= outage.seconds

    monkeypatch.setattr(BranchRunActors, "collect", lambda actors, *given: outage(actors, *given))
    monkeypatch.setattr(BranchRunActors, "answers", answering)
    finish(simulation)
    assert met_after == [[], [1], [1]], "the second one is newer than the checkpoint of the last commit"
    assert met(simulation) == [1, 2] and taken(simulation) == [0, 1, 2, 6]


def test_one_whose_publication_failed_is_taken_after_the_next_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    assert simulation.drive(killed_at="collect:3") is None
    ask(simulation)
    result = BranchRunActors.checkpoint_result
    failed = list[int]()

    def failing(actors: BranchRunActors, wait_seconds: float = 0.0) -> CheckpointReceipt | None:
        trainer = actors._cluster.trainer
        if trainer.version < 3 or failed:
            return result(actors, wait_seconds)
        if trainer.version == 3:
            return None  # it is still being published
        trainer.publication = trainer.published = None
        for half in (simulation.home.run_folder(simulation.run) / "checkpoints").glob("*i000003*"):
            shutil.rmtree(half)
        failed.append(trainer.version)
        raise InfrastructureError("the disk failed")

    monkeypatch.setattr(BranchRunActors, "checkpoint_result", failing)
    finish(simulation)
    assert failed == [4] and taken(simulation) == [0, 4, 6]
