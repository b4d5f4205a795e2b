"""An iteration that finishes with what is there: by the clock, recorded before it takes effect, obeyed by every driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.simulation.cluster import SimulatedClock
from flows.phases.evaluation import EVALUATED, answer_held_out
from flows.phases.finishing import AttemptDeadline
from flows.run.home import Home
from tests.flows.opened import new_run, opened
from tests.flows.simulated import SHARDS, Simulation
from tests.matrix import in_verify
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import EvaluateReceipt, TaskResult
from yatt_core.spec.sections.finishing import FinishSpec

SECONDS = 150.0
"""Of a simulated collection of four shards in 210 s: the third is sealed after 157.5 s, the last is left out."""
VERIFY = pytest.mark.verify
OVERRIDES = (
    "iterations=4",
    "exact=false",
    f"data.logical_shards={SHARDS}",
    f"dynamic_sampling={{kind: all, deadline: {{seconds: {SECONDS}}}}}",
)


def test_enough_must_be_done_and_the_time_be_over() -> None:
    clock = SimulatedClock()
    finish = AttemptDeadline.start(FinishSpec(seconds=60, at_least=0.5), 5, clock)
    assert not finish.allows(5), "there is time"
    clock.sleep(60.0)
    assert finish.is_over and not finish.allows(2) and finish.allows(3)
    never = AttemptDeadline.start(None, 5, clock)
    clock.sleep(1e9)
    assert not never.is_over and not never.allows(5)


def shards_of(simulation: Simulation, iteration: int) -> list[int]:
    with simulation.ledger() as ledger:
        return [row.shard for row in ledger.records.shards(simulation.run, 0, iteration)]


def test_what_is_not_sealed_in_time_is_left_out_and_counted(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, *OVERRIDES)
    outcome = simulation.drive()
    assert outcome is not None and (outcome.state, outcome.iteration) == ("completed", 4)
    with simulation.ledger() as ledger:
        for iteration in range(1, 5):
            choice = ledger.records.choices(simulation.run, 0, iteration)["cut-0"]
            assert choice.body["late"] is True and choice.body["shards"] == [SHARDS - 1]
            assert shards_of(simulation, iteration) == [0, 1, 2]
            links = ledger.events.links(simulation.run)
            chosen = next(link.seq for link in links if link.kind == "choice" and link.body["iteration"] == iteration)
            committed = next(
                link.seq for link in links if link.kind == "commit" and link.body["iteration"] == iteration
            )
            assert chosen < committed
        cut = dict(ledger.metrics.history(simulation.run, "sampling/cut_groups"))
        filled = dict(ledger.metrics.history(simulation.run, "sampling/filled_fraction"))
    assert set(cut) == {1, 2, 3, 4} and all(value >= 1 for value in cut.values())
    assert all(0.5 <= value < 1.0 for value in filled.values())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """A run that nobody disturbed."""
    made = Simulation.of(tmp_path_factory.mktemp("plain"), *OVERRIDES)
    assert made.drive() is not None
    return made


@pytest.mark.parametrize(
    "killed_at",
    [
        "prepare:2",
        "commit:3",
        *(pytest.param(at, marks=VERIFY) for at in ("learn:2", "sync:3", "committed:2", "collect:3")),
    ],
)
@pytest.mark.parametrize("cold", [True, *in_verify(False)])
def test_a_recovering_driver_obeys_what_was_left_out(
    plain: Simulation, tmp_path: Path, killed_at: str, cold: bool
) -> None:
    killed = Simulation.of(tmp_path / "killed", *OVERRIDES)
    assert killed.drive(killed_at=killed_at) is None
    with killed.ledger() as ledger:
        before = {i: ledger.records.choices(killed.run, 0, i) for i in (1, 2)}
    outcome = killed.drive(cold=cold)
    assert outcome is not None and outcome.iteration == 4
    with killed.ledger() as ledger, plain.ledger() as other:
        assert {i: ledger.records.choices(killed.run, 0, i) for i in (1, 2)} == before
        for iteration in range(5):
            one = ledger.commits.at(killed.run, iteration)
            two = other.commits.at(plain.run, iteration)
            assert one is not None and two is not None and one.weights_digest == two.weights_digest


def test_without_enough_the_collection_goes_on(tmp_path: Path) -> None:
    simulation = Simulation.of(
        tmp_path, *OVERRIDES[:3], "dynamic_sampling={kind: all, deadline: {seconds: 1, at_least: 1.0}}"
    )
    assert simulation.drive() is not None
    assert shards_of(simulation, 2) == list(range(SHARDS))
    with simulation.ledger() as ledger:
        assert ledger.records.choices(simulation.run, 0, 2) == {}


def test_the_tasks_of_an_evaluation_are_a_recorded_choice(tmp_path: Path) -> None:
    """A driver that was killed between an evaluation and its commit evaluates again, whatever is faster then."""
    home = Home(tmp_path)
    session = opened(home, new_run(home, "exact=false", "evaluation.deadline={seconds: 9}"))
    asked: list[Any] = []

    def evaluate(run: str, iteration: int, held_out: int, only: Any = None, allows: Any = None) -> EvaluateReceipt:
        asked.append((only, allows is not None))
        rows = (1, 2, 5) if only is None else tuple(only)
        tasks = tuple(TaskResult(str(row), 0, 1, 1, 1.0) for row in rows)
        return EvaluateReceipt(WorkKey(run, 0, iteration, "evaluate"), tasks, rows, held_out)

    try:
        stub = SimpleNamespace(
            context=session.context,
            start=SimpleNamespace(inputs=SimpleNamespace(held_out_prompts=8)),
            actors=SimpleNamespace(evaluate=evaluate),
        )
        first = answer_held_out(cast(Any, stub), 3)
        choice = session.context.ledger.records.choices(session.context.run, 0, 3)[EVALUATED]
        assert choice.body == {"rows": [1, 2, 5], "of": 8}
        assert answer_held_out(cast(Any, stub), 3) == first
        assert asked == [(None, True), ([1, 2, 5], False)]
    finally:
        session.end("ended")
