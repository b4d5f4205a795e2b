"""Ranks of a trainer and rollout engines as actors that are threads of this process, with real transfers between them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, build_model
from tests.engines.sync.members import Parts
from tests.engines.sync.test_transfers import sharded
from yatt_core.actors.rollout import RolloutActor
from yatt_core.actors.trainer import TrainerActor
from yatt_core.actors.transfers import TransferEnd
from yatt_core.checkpoints.writer import CheckpointWriter
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.run_actors.actor_registry import ROLLOUT, TRAINER
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
        self.actor = actor
        self._actor_id = SimpleNamespace(hex=lambda: name)
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

    def get_from_group(self, asked: dict[Any, str], what: str) -> list[Any]:
        return self.get(list(asked), what, list(asked.values()))


def rank_of(number: int, spec: Any, parts: Parts, folder: Path) -> Handle:
    actor = TrainerActor.__new__(TrainerActor)
    actor._checkpoints = CheckpointWriter(folder)
    actor._group = "joined"
    actor._spec = spec
    actor._rank = number
    actor._settled = True
    actor._sent = SentWeights()
    engine = SimpleNamespace(version=0, in_step=False, copies_alone=True, sync_parts=lambda outlines=False: iter(parts))
    actor._engine = engine  # type: ignore[assignment]
    return Handle(f"trainer-{number}", actor)


def engine_of(number: int, spec: Any, folder: Path) -> Handle:
    actor = RolloutActor.__new__(RolloutActor)
    actor._spec = spec
    actor._instance = number
    actor._held = ""
    actor._engine = TorchRolloutEngine(str(folder), "bfloat16", MAX_PROMPT, MAX_NEW, folder)
    actor._taker = actor._engine
    return Handle(f"rollout-{number}", actor)


def actors_of(folder: Path) -> dict[str, list[Handle]]:
    """Returns two ranks and two engines."""
    build_model(folder, "tied")
    tree = {
        "name": "delta", "exact": False,
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
        "rollout": {"engine": {"kind": "torch", "dtype": "bfloat16"}},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "trainer": SETTINGS.model_dump(mode="json"),
    }  # fmt: skip
    spec = parse_spec(tree, "test")
    parts = sharded(folder, 0, 2)
    return {
        TRAINER: [rank_of(number, spec, each, folder) for number, each in enumerate(parts)],
        ROLLOUT: [engine_of(number, spec, folder) for number in range(2)],
    }
