"""The assignment of shards to controllers: a shard has one owner until it is finished, even if controllers are lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import ShardTask
from yatt_core.run_actors.shard_assignment import ShardAssignment


def tasks(count: int) -> list[ShardTask]:
    return [ShardTask(WorkKey("run", 0, 1, "collect", shard=i), 1, (), 0) for i in range(count)]


def shards(assigned: dict[str, tuple[ShardTask, ...]]) -> dict[str, list[int]]:
    return {name: [task.key.shard for task in given] for name, given in assigned.items()}


def test_a_second_attempt_gives_a_shard_to_the_same_controller() -> None:
    assert shards(ShardAssignment(["a", "b"], tasks(5)[1:4]).unfinished()) == {"a": [2], "b": [1, 3]}


def test_shards_are_dealt_in_turn_and_idle_controllers_get_none() -> None:
    assert shards(ShardAssignment(["a", "b"], tasks(5)).unfinished()) == {"a": [0, 2, 4], "b": [1, 3]}
    assert shards(ShardAssignment(["a", "b", "c"], tasks(2)).unfinished()) == {"a": [0], "b": [1]}


def test_a_lost_controllers_unfinished_shards_go_to_the_least_loaded() -> None:
    assignment = ShardAssignment(["a", "b", "c"], tasks(9))
    for shard in (1, 4):
        assignment.finish("b", WorkKey("run", 0, 1, "collect", shard=shard))
    moved = assignment.lose("a")
    assert moved is not None and shards(moved) == {"b": [0, 3, 6]}
    assert shards(assignment.unfinished()) == {"b": [7, 0, 3, 6], "c": [2, 5, 8]}


def test_the_last_controllers_work_is_not_reassigned() -> None:
    assignment = ShardAssignment(["a", "b"], tasks(2))
    assert assignment.lose("a") is not None
    assert assignment.lose("b") is None
    finished = ShardAssignment(["a"], tasks(0))
    assert finished.lose("a") == {}


@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_every_shard_has_one_owner_until_it_is_finished(controllers: int, count: int, data: st.DataObject) -> None:
    names = [f"controller-{i}" for i in range(controllers)]
    assignment = ShardAssignment(names, tasks(count))
    finished = set[WorkKey]()
    while open_now := assignment.unfinished():
        name = data.draw(st.sampled_from(sorted(open_now)))
        if len(names) > 1 and data.draw(st.booleans()):
            lost = open_now[name]
            names.remove(name)
            moved = assignment.lose(name)
            assert moved is not None
            assert sorted(task.key for given in moved.values() for task in given) == sorted(task.key for task in lost)
        else:
            key = open_now[name][0].key
            assignment.finish(name, key)
            finished.add(key)
        owned = [task.key for given in assignment.unfinished().values() for task in given]
        assert sorted([*owned, *finished]) == sorted(task.key for task in tasks(count))
