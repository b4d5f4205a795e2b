"""Which engines get changes and which get all weights, with actors that are threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, build_model
from tests.engines.sync.members import Parts
from tests.engines.sync.test_transfers import held, sharded
from yatt_core.actors.rollout import RolloutActor
from yatt_core.actors.trainer import TrainerActor
from yatt_core.actors.transfers import TransferEnd
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.errors import InfrastructureError, ReplayError
from yatt_core.protocols.receipts import DIRECT
from yatt_core.run_actors.actor_registry import ROLLOUT, TRAINER
from yatt_core.run_actors.weight_sync import WeightSync
from yatt_core.spec import parse_spec
from yatt_core.spec.sections.trainer import TrainerSpec

SETTINGS = TrainerSpec(sync="delta", sync_bucket_bytes=4096)


class Presence:
    """Fences nobody."""

    fence = SimpleNamespace(check=lambda term: None)

    @contextmanager
    def serving(self, method: str, term: int) -> Iterator[None]:
        yield


class Handle:
    """An actor in this process, whose methods run on a thread of its own."""

    def __init__(self, name: str, actor: Any) -> None:
        self.actor, self._actor_id = actor, SimpleNamespace(hex=lambda: name)
        actor._presence = Presence()
        actor._transfers = TransferEnd(name, actor._presence)
        actor._transfers.host = lambda: "127.0.0.1"
        self._thread = ThreadPoolExecutor(1)

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Future[Any]:
            return self._thread.submit(getattr(self.actor, method), *arguments)

        return SimpleNamespace(remote=remote)


class Registry:
    def __init__(self, handles: dict[str, list[Handle]]) -> None:
        self._handles = handles

    def of(self, role: str) -> list[Handle]:
        return self._handles[role]

    def names_of(self, role: str) -> list[str]:
        return [f"{role}-{number}" for number in range(len(self._handles[role]))]

    def capable(self, names: list[str], capability: str) -> bool:
        return True


class Calls:
    def get(self, references: list[Future[Any]], what: str, names: list[str]) -> list[Any]:
        return [reference.result(60) for reference in references]

    def find_lost(self, references: dict[Any, str]) -> list[str]:
        return []


def rank_of(number: int, spec: Any, parts: Parts) -> Handle:
    actor = TrainerActor.__new__(TrainerActor)
    actor._spec, actor._rank, actor._settled, actor._sent = spec, number, True, SentWeights()
    actor._engine = SimpleNamespace(version=0, direct_sync=True, sync_parts=lambda: iter(parts))  # type: ignore[assignment]
    return Handle(f"trainer-{number}", actor)


def engine_of(number: int, spec: Any, folder: Path) -> Handle:
    actor = RolloutActor.__new__(RolloutActor)
    actor._spec, actor._instance, actor._held = spec, number, ""
    actor._engine = TorchRolloutEngine(str(folder), "bfloat16", MAX_PROMPT, MAX_NEW, folder)
    actor._taker = actor._engine
    return Handle(f"rollout-{number}", actor)


@pytest.fixture
def actors(tmp_path: Path) -> dict[str, list[Handle]]:
    build_model(tmp_path, "tied")
    tree = {
        "name": "delta", "exact": False,
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
        "rollout": {"engine": {"kind": "torch", "dtype": "bfloat16"}},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "trainer": SETTINGS.model_dump(mode="json"),
    }  # fmt: skip
    spec = parse_spec(tree, "test")
    parts = sharded(tmp_path, 0, 2)
    return {
        TRAINER: [rank_of(number, spec, each) for number, each in enumerate(parts)],
        ROLLOUT: [engine_of(number, spec, tmp_path) for number in range(2)],
    }


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
    assert [(each.instance, each.delta, each.way) for each in first] == [(0, False, DIRECT), (1, False, DIRECT)]
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
    take, taken = engine.take, list[int]()

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
        rank.actor._group = "joined"
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
