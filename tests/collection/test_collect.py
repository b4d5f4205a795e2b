"""A controller scores responses while its engine continues; all responses are durable before the last scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray

from tests.cluster.run_actors import shard_tasks
from tests.dispatch.test_generation import Pool
from tests.services import ROOT
from yatt_core.actors import controller
from yatt_core.actors.controller import Controller
from yatt_core.dispatch import generation
from yatt_core.experience.shard_log import ShardLog
from yatt_core.fence import TermFence
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import PEAK_BYTES, ActorIdentity, ShardTask
from yatt_core.rewards.scoring import RewardScorer, SampleScore
from yatt_core.spec import load_spec


class LocalPresence:
    """A presence without a thread."""

    def __init__(self, *_: object) -> None:
        self.fence = TermFence(1)

    @contextmanager
    def serving(self, method: str, term: int) -> Iterator[None]:
        yield


def test_scoring_starts_during_the_batch_and_responses_are_durable_before_the_last_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    pool = Pool()

    def get(reference: object) -> object:
        value = pool.get(reference)
        if not isinstance(value, tuple):
            events.append("piece")
        return value

    monkeypatch.setattr(generation, "ray", SimpleNamespace(wait=pool.wait, get=get, exceptions=ray.exceptions))
    monkeypatch.setattr(controller, "Presence", LocalPresence)
    monkeypatch.setattr(controller, "actor_logs", lambda *_: ActorIdentity("controller-0", 1, "here"))
    total = RewardScorer.total
    keep = ShardLog.append_responses

    def scored(self: RewardScorer, *arguments: Any) -> SampleScore:
        events.append("score")
        return total(self, *arguments)

    def kept(self: ShardLog, batch: int, table: pa.Table) -> None:
        keep(self, batch, table)
        events.append("durable")

    monkeypatch.setattr(RewardScorer, "total", scored)
    monkeypatch.setattr(ShardLog, "append_responses", kept)
    # An actor whose driver is silent for longer than the grace period exits; here that would end the tests.
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["recovery.grace_seconds=1e9"])
    one = Controller(spec.model_dump_json(), str(tmp_path), 0, 1)
    one.load(1, one.materialise(1), pool.dispatcher)
    prompts = tuple(prompt for task in shard_tasks(spec, 1) for prompt in task.prompts)
    (receipt,) = one.collect([ShardTask(WorkKey("run", 0, 1, "collect", shard=0), 1, prompts, 0)])
    assert receipt.samples == len(prompts) * spec.rollout.samples_per_prompt == events.count("score")
    assert receipt.timing[PEAK_BYTES] > 0
    last_piece = len(events) - 1 - events[::-1].index("piece")
    assert "score" in events[:last_piece], "no score before the engine's last piece"
    assert events[last_piece + 1] == "durable" and set(events[last_piece + 2 :]) == {"score"}
