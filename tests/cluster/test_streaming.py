"""Finished responses are scored while their engine continues, within the bound on bytes in flight; results are equal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Head
from tests.cluster.run_actors import RUN, actors_of, actors_spec, begin
from yatt_core.actors.rollout import RolloutActor
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.errors import InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor, Prompt, draw
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.receipts import PEAK_BYTES, ShardReceipt, ShardTask
from yatt_core.run_actors.actor_registry import CLASSES, ROLLOUT
from yatt_core.run_actors.run_actors import RunActors

SCORED = "scored"
ONE_OF_EACH = ("controllers.count=1", "rollout.engine.instances=1", "trainer.engine.ranks=1")


def score_and_tell(prompt: Prompt, response: str, folder: str) -> float:
    """Scores a response and creates a file to show that it was called."""
    (Path(folder) / SCORED).touch()
    return len(response) % 7 / 7


class WaitingEngine(RolloutActor):
    """An engine that continues a decode batch only after the first finished prompt was scored."""

    def generate(self, term: int, request: GenerateRequest, number: int) -> Iterator[GeneratePiece]:
        pieces = [piece for piece in self._ready().stream(request) if piece is not None]
        if len(pieces) < 2:
            raise InfrastructureError("all responses ended in the same step")
        yield pieces[0]
        scored = Path(str(self._spec.rewards.parts[0].options["folder"])) / SCORED
        give_up = time.monotonic() + 60
        while not scored.exists():
            if time.monotonic() > give_up:
                raise InfrastructureError("no score before the decode batch was complete")
            time.sleep(0.01)
        scored.unlink()
        yield from (piece for piece in pieces[1:])  # Ray needs a generator because it calls `send`


@pytest.fixture
def attached(head: Head) -> Iterator[None]:
    connect_ray(head.address, "streaming", head.run_folder)
    yield
    disconnect_ray()


def collected(folder: Path, *overrides: str) -> tuple[RunActors, list[ShardReceipt]]:
    """Collects a single shard that has all prompts, with one controller and one engine."""
    folder.mkdir()
    reward = ("rewards.parts.0.function=tests.cluster.test_streaming:score_and_tell",)
    spec = actors_spec(*ONE_OF_EACH, *reward, f"rewards.parts.0.options.folder={folder}", *overrides)
    actors = actors_of(spec, folder, 1)
    try:
        begin(actors)
        references, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), spec.data.prompts_per_iteration)
        task = ShardTask(WorkKey(RUN, 0, 1, "collect", shard=0), 1, references, 0)
        return actors, list(actors.begin_collecting([task]).receipts())
    finally:
        actors.stop()


def test_responses_are_scored_during_decoding_and_one_batch_is_in_flight_at_a_time(
    attached: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = "rollout.batch_samples=16"
    _, (plain,) = collected(tmp_path / "plain", batches)
    monkeypatch.setitem(CLASSES, ROLLOUT, WaitingEngine)
    _, (streamed,) = collected(tmp_path / "streamed", batches, "controllers.bytes_in_flight=1")
    assert streamed.group_digests == plain.group_digests
    assert streamed.sums == plain.sums
    assert 0 < streamed.timing[PEAK_BYTES] < plain.timing[PEAK_BYTES] <= 2 * streamed.timing[PEAK_BYTES] + 1000
