"""Which engines get changes and which get all weights, with actors that are threads of this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.sync.test_transfers import held
from tests.run_actors.local_actors import SETTINGS, Calls, Handle, Registry, actors_of
from yatt_core.errors import InfrastructureError, ReplayError
from yatt_core.run_actors.actor_registry import ROLLOUT, TRAINER
from yatt_core.run_actors.weight_sync import WeightSync


@pytest.fixture
def actors(tmp_path: Path) -> dict[str, list[Handle]]:
    return actors_of(tmp_path)


def learn(actors: dict[str, list[Handle]], version: int) -> None:
    """Changes some weights."""
    for rank in actors[TRAINER]:
        rank.actor._engine.version = version
        for part in rank.actor._engine.sync_parts():
            part.values[..., ::40] += version


def test_an_engine_that_does_not_hold_what_was_sent_last_gets_everything(actors: dict[str, list[Handle]]) -> None:
    calls: Any = Calls()
    registry: Any = Registry(actors)
    sync = WeightSync(calls, registry, 1, SETTINGS)
    first = sync.sync(0)
    assert [(each.instance, each.delta) for each in first] == [(0, False), (1, False)]
    assert not sync.sync(0)
    learn(actors, 1)
    changed = sync.sync(1)
    assert all(each.delta and each.bytes < first[0].bytes / 4 for each in changed)
    actors[ROLLOUT][0].actor._begin_update(1)
    learn(actors, 2)
    assert [(each.instance, each.delta) for each in sync.sync(2)] == [(0, False), (1, True)]
    learn(actors, 3)
    assert [each.delta for each in sync.sync(3)] == [True, True]
    one, other = (held(engine.actor._engine) for engine in actors[ROLLOUT])
    assert one == other
    whole = actors[ROLLOUT][0].actor._engine._tensors
    for rank in actors[TRAINER]:
        for part in rank.actor._engine.sync_parts():
            own = whole[part.name][part.box.slices((0,) * len(part.shape))]
            assert torch.equal(own, part.values.to(torch.bfloat16)), part.name


def test_a_failed_transfer_is_no_base(actors: dict[str, list[Handle]]) -> None:
    calls: Any = Calls()
    registry: Any = Registry(actors)
    sync = WeightSync(calls, registry, 1, SETTINGS)
    sync.sync(0)
    learn(actors, 1)
    engine = actors[ROLLOUT][1].actor._engine
    take = engine.take
    taken = list[int]()

    def fails(bucket: Any) -> None:
        taken.append(bucket.number)
        raise InfrastructureError("rollout-1 cannot")

    engine.take = fails
    with pytest.raises(InfrastructureError):
        sync.sync(1)
    engine.take = take
    assert taken and engine.version == -1
    again = sync.sync(1)
    assert 1 in [each.instance for each in again] and not any(each.delta for each in again)
    learn(actors, 2)
    assert [each.version for each in sync.sync(2)] == [2, 2]
    one, other = (held(each.actor._engine) for each in actors[ROLLOUT])
    assert one == other


def test_weights_that_differ_are_found_and_sent_again(actors: dict[str, list[Handle]]) -> None:
    """The trainer's from those in the commit, and an engine's from the trainer's."""
    calls: Any = Calls()
    registry: Any = Registry(actors)
    sync = WeightSync(calls, registry, 1, SETTINGS)
    sync.sync(0)
    for rank in actors[TRAINER]:
        rank.actor._engine.weights_digest = lambda: "a" * 64
    sync.check(0, "a" * 64)
    with pytest.raises(ReplayError, match="b" * 64):
        sync.check(0, "b" * 64)
    engine = actors[ROLLOUT][1].actor._engine
    name = "model.layers.0.mlp.up_proj.weight"
    engine._tensors[name].view(torch.uint8)[0, 0] ^= 1
    with pytest.raises(InfrastructureError, match=rf"rollout-1 .*{name}"):
        sync.check(0, None)
    assert engine.version == -1
    assert [each.instance for each in sync.sync(0)] == [1]
    sync.check(0, None)


def test_engines_that_this_driver_has_synced_are_not_asked_what_they_hold(actors: dict[str, list[Handle]]) -> None:
    asked: list[str] = []
    for engine in actors[ROLLOUT]:
        version = engine.actor.version

        def noted(term: int, name: str = engine._actor_id.hex(), version: Any = version) -> int:
            asked.append(name)
            return int(version(term))

        engine.actor.version = noted
    names = sorted(engine._actor_id.hex() for engine in actors[ROLLOUT])
    calls: Any = Calls()
    registry: Any = Registry(actors)
    sync = WeightSync(calls, registry, 1, SETTINGS)
    sync.sync(0)
    assert sorted(asked) == names, "an engine may have the weights of an earlier driver"
    learn(actors, 1)
    assert [each.version for each in sync.sync(1)] == [1, 1]
    assert sorted(asked) == names
    assert not sync.sync(1), "again, as after an attempt that failed behind the transfer"
    assert sorted(asked) == sorted(2 * names)
    learn(actors, 2)
    actors[ROLLOUT][0].actor._begin_update(2)
    assert [each.version for each in sync.sync(2)] == [2, 2], "a dirty engine lacks the version like the others"
    assert sorted(asked) == sorted(2 * names)


def test_engines_are_asked_after_a_transfer_that_failed_and_if_one_is_new(actors: dict[str, list[Handle]]) -> None:
    calls: Any = Calls()
    registry: Any = Registry(actors)
    sync = WeightSync(calls, registry, 1, SETTINGS)
    sync.sync(0)
    learn(actors, 1)
    engine = actors[ROLLOUT][1].actor._engine
    take = engine.take

    def fails(bucket: Any) -> None:
        raise InfrastructureError("rollout-1 cannot")

    engine.take = fails
    with pytest.raises(InfrastructureError):
        sync.sync(1)
    engine.take = take
    assert sync._synced == ((), -1)
    sync.sync(1)
    assert list(sync._lacking(2)) == ["rollout-0", "rollout-1"]
    actors[ROLLOUT][0]._actor_id = SimpleNamespace(hex=lambda: "another")
    actors[ROLLOUT][0].actor.version = lambda term: 2
    assert list(sync._lacking(2)) == ["rollout-1"]
