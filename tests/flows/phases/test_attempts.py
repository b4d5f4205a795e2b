"""A phase as a Prefect task: what Prefect looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from prefect import Task
from prefect.utilities.collections import visit_collection

from flows.phases.attempts import PhaseTask


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

    def call(task: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Does what Prefect does with parameters before it calls a task's function."""
        parameters: Any = visit_collection((args, kwargs), look, return_data=True, context={}, remove_annotations=True)
        given, named = parameters
        return task.fn(*given, **named)

    learn = PhaseTask(fn=attempted, name="learn")
    monkeypatch.setattr(Task, "__call__", call)
    batch = Batch(("shard-0", "shard-1"))
    session: Any = "session"
    assert learn(session, 3, batch, prepared=Batch(("column",))) == "session, 3, 2, 1"
    assert 3 in seen, "the iteration names the task run"
    assert batch in seen, "the value itself, which may be a result, but nothing in it"
    assert not {"shard-0", "shard-1", "column"} & {each for each in seen if isinstance(each, str)}
