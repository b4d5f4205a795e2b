"""A checkpoint's copy goes on beside a transfer of weights, and nothing changes what is copied before it ends."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.checkpoints.scenarios import state_of
from tests.run_actors.local_actors import SETTINGS, Calls, Registry, actors_of
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import FrozenState
from yatt_core.protocols.receipts import BatchTask
from yatt_core.run_actors.actor_registry import ROLLOUT, TRAINER
from yatt_core.run_actors.weight_sync import WeightSync

TASK = BatchTask(WorkKey("run", 0, 1, "learn"), 1, ())
CHANGES = ("skip", "offload", "reload")


class Copying:
    """The state of a rank whose copy takes until `go_on` is set."""

    def __init__(self, engine: Any) -> None:
        self.begun = Event()
        self.go_on = Event()
        self.copies = 0
        self.changed_during_copy = list[bool]()
        engine.freeze_state = self.freeze
        for method in CHANGES:
            setattr(engine, method, self.change)

    def freeze(self) -> FrozenState:
        self.copies += 1
        self.begun.set()
        assert self.go_on.wait(60)
        return state_of(0, ranks=1)

    def change(self, *_: Any) -> None:
        self.changed_during_copy.append(self.begun.is_set() and not self.go_on.is_set())


@pytest.mark.parametrize("change", [("skip", TASK), ("offload", 1)])
def test_weights_are_sent_while_they_are_copied_and_changed_afterwards(tmp_path: Path, change: tuple[str, Any]) -> None:
    actors = actors_of(tmp_path)
    calls: Any = Calls()
    registry: Any = Registry(actors)
    rank = actors[TRAINER][0]
    copying = Copying(rank.actor._engine)
    rank.copy_ahead.remote(1, 0).result(60)
    assert copying.begun.wait(60)
    assert [receipt.version for receipt in WeightSync(calls, registry, 1, SETTINGS).sync(0)] == [0, 0]
    assert [engine.actor._engine.version for engine in actors[ROLLOUT]] == [0, 0]
    assert not copying.go_on.is_set(), "the weights were sent during the copy"
    asked = Event()
    finish = rank.actor._checkpoints.finish_copy

    def finish_copy(changes: bool) -> None:
        asked.set()
        finish(changes=changes)

    rank.actor._checkpoints.finish_copy = finish_copy
    method, argument = change
    changed = getattr(rank, method).remote(argument)
    assert asked.wait(60) and not changed.done()
    copying.go_on.set()
    changed.result(60)
    assert copying.changed_during_copy == [False, False], "by the reload before the copy, and by this change"


def test_the_copy_is_used_once_and_not_after_a_change(tmp_path: Path) -> None:
    rank = actors_of(tmp_path)[TRAINER][0]
    rank.actor._spec = rank.actor._spec.model_copy(update={"name": "copied"})
    copying = Copying(rank.actor._engine)
    copying.go_on.set()

    def checkpoint(attempt: int) -> str:
        rank.begin_checkpoint.remote(1, "copied-1", 0, "head", attempt).result(60)
        return str(rank.checkpoint_result.remote(60.0).result(60).folder)

    rank.copy_ahead.remote(1, 0).result(60)
    folder = checkpoint(1)
    assert (copying.copies, (tmp_path / folder).is_dir()) == (1, True)
    rank.copy_ahead.remote(1, 0).result(60)
    rank.offload.remote(1).result(60)
    rank.actor._engine.version = 1
    checkpoint(2)
    assert copying.copies == 2
    rank.copy_ahead.remote(1, 1).result(60)
    rank.skip.remote(TASK).result(60)
    rank.actor._engine.version = 2
    checkpoint(3)
    assert copying.copies == 4
