"""A phase as a Prefect task: what Prefect looks at, and how its task run begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import pytest
from prefect.client.schemas.objects import TaskRun
from prefect.utilities.callables import call_with_parameters
from prefect.utilities.collections import visit_collection

from db.write.phases import Attempt
from flows.phases import attempts
from flows.phases.attempts import PhaseTask, adapter_of, phase, recording_phase
from yatt_core.protocols.receipts import PrepareReceipt


@dataclass(frozen=True)
class Batch:
    shards: tuple[str, ...]


def test_prefect_does_not_look_through_what_a_phase_works_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempted(session: Any, iteration: int, batch: Batch, prepared: Batch) -> str:
        return f"{session}, {iteration}, {len(batch.shards)}, {len(prepared.shards)}"

    seen = list[Any]()

    def look(each: Any, context: dict[str, Any]) -> Any:
        seen.append(each)
        return each

    def run(task: PhaseTask, task_run: TaskRun, parameters: dict[str, Any]) -> Any:
        """Does what Prefect does with parameters before it calls a task's function."""
        given: Any = visit_collection(parameters, look, return_data=True, context={}, remove_annotations=True)
        return call_with_parameters(task.fn, given)

    learn = PhaseTask(fn=attempted, name="learn")
    monkeypatch.setattr(attempts, "run_task", run)
    batch = Batch(("shard-0", "shard-1"))
    session: Any = "session"
    assert learn(session, 3, batch, prepared=Batch(("column",))) == "session, 3, 2, 1"
    assert batch in seen, "the value itself, which may be a result, but nothing in it"
    assert not {"shard-0", "shard-1", "column"} & {each for each in seen if isinstance(each, str)}


def test_a_task_run_is_made_here_so_that_prefect_does_not_say_that_it_is_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[TaskRun] = []

    def run(task: PhaseTask, task_run: TaskRun, parameters: dict[str, Any]) -> None:
        begun.append(task_run)

    def attempted(session: Any, iteration: int) -> None:
        """Does nothing."""

    monkeypatch.setattr(attempts, "run_task", run)
    learn = PhaseTask(fn=attempted, name="learn")
    session: Any = "session"
    learn(session, 3)
    learn(session, 4)
    assert [run.name for run in begun] == ["learn 3", "learn 4"]
    assert len({run.id for run in begun}) == len({run.dynamic_key for run in begun}) == 2
    for run in begun:
        assert run.state is not None and run.state.is_pending(), "the engine begins with the next state"
        assert run.state.state_details.task_run_id == run.id
        assert run.task_key == learn.task_key and run.empirical_policy.retries == 0


def test_what_converts_receipts_is_made_once() -> None:
    assert adapter_of(PrepareReceipt) is adapter_of(PrepareReceipt)


@pytest.mark.parametrize(
    ("make", "number", "begun_until", "synced"),
    [
        (recording_phase, 1, 0, False),
        (recording_phase, 2, 0, True),  # the record may be there
        (recording_phase, 1, 3, True),  # and so if the iteration was begun before the session
        (phase, 1, 0, True),
    ],
)
def test_an_intent_is_durable_before_anything_that_the_ledger_does_not_record_first(
    make: Callable[[Any], Any], number: int, begun_until: int, synced: bool
) -> None:
    def attempted(session: Any, iteration: int) -> None:
        """Does nothing."""

    session = MagicMock()
    session.begun_until = begun_until
    session.context.clock.monotonic.return_value = 1.0
    session.meter.total = 0
    phases = session.context.ledger.phases
    phases.plan.return_value = attempt = Attempt(run="toy-1", branch=0, iteration=3, phase="attempted", number=number)
    make(attempted).fn(session, 3)
    phases.dispatch.assert_called_once_with(session.context.fence, attempt, synced=synced)
    phases.finish.assert_called_once()


def test_a_phase_gives_its_actors_its_own_deadline() -> None:
    session = MagicMock()
    session.context.clock.monotonic.return_value = 1.0
    session.begun_until = 0
    session.meter.total = 0
    session.deadlines.of.side_effect = {"attempted": 7.5}.__getitem__
    found = list[float]()

    def attempted(session: Any, iteration: int) -> None:
        found.append(session.actors.deadline)

    make: Any = phase
    make(attempted).fn(session, 3)
    assert found == [7.5], "before anything of the phase is done"
    session.threads.allow.assert_called_once_with(7.5, "attempted of iteration 3")
