"""Weights go from trainer to engines in buckets: few exist at once; an aborted sync leaves no half-updated engine."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray._private.internal_api import get_memory_info_reply

from tests.cluster.conftest import Head
from tests.cluster.run_actors import (
    DriverBeat,
    actors_of,
    actors_spec,
    begin,
    behind_buckets,
    driver_killed_at,
    pid_of,
    shard_tasks,
)
from tests.waiting import wait_until
from yatt_core.cluster.gcs import living_nodes
from yatt_core.cluster.metering import UNINTERRUPTED, BytesMeter, metered_get
from yatt_core.errors import LostActorError
from yatt_core.protocols.receipts import SyncReceipt
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.run_actors.sync_parties import SyncParties
from yatt_core.run_actors.weight_sync import sync_through_store
from yatt_core.wire.buckets import WeightBucket, buckets_of

NAMESPACE = "weights"
FOUR_BUCKETS = "trainer.sync_bucket_bytes=8"
"""A virtual trainer has 32 bytes of weights."""
MIB = 1 << 20
COUNT = 12


def experience_of(actors: RunActors, term: int) -> list[str]:
    """Returns digests of the engines' responses to an iteration's prompts, which depend on their weights."""
    receipts = sorted(
        actors.begin_collecting(shard_tasks(actors_spec(), term)).receipts(), key=lambda receipt: receipt.key.shard
    )
    return [receipt.group_digests.hex() for receipt in receipts]


@pytest.fixture(scope="module")
def undisturbed(attached: Head, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with DriverBeat(1):
        actors = actors_of(actors_spec(), folder, 1)
        try:
            begin(actors)
            return experience_of(actors, 1)
        finally:
            actors.stop()


@pytest.mark.parametrize("lost", ["trainer-0", pytest.param("rollout-1", marks=pytest.mark.verify)])
def test_an_actor_killed_between_two_buckets_leaves_the_engines_dirty(
    actor_sets: list[RunActors], tmp_path: Path, undisturbed: list[str], lost: str
) -> None:
    with DriverBeat(1):
        actor_sets.append(actors := actors_of(actors_spec(FOUR_BUCKETS), tmp_path, 1))
        actors.start()
        actors.load(actors.materialise())
        actors.sft()

        def strike() -> None:
            pid = pid_of(lost)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())

        behind_buckets(actors)[2] = strike
        with pytest.raises(LostActorError, match=lost):
            actors.sync(0)
        created = actors.start()
        assert set(created) == ({"trainer-0", "trainer-1"} if lost == "trainer-0" else {lost})
        standing = actors.load(actors.materialise())
        assert standing.engine_versions == (-1, -1), "replaced or partly updated engines have no version"
        assert actors.sft().weights_digest
        assert [(receipt.instance, receipt.buckets, receipt.bytes) for receipt in actors.sync(0)] == [
            (0, 4, 32),
            (1, 4, 32),
        ]
        assert experience_of(actors, 1) == undisturbed


def test_a_driver_killed_between_two_buckets_leaves_the_engines_dirty(
    attached: Head, actor_sets: list[RunActors], tmp_path: Path, undisturbed: list[str]
) -> None:
    driver_killed_at("bucket", attached, NAMESPACE, tmp_path, FOUR_BUCKETS)
    with DriverBeat(2):
        actor_sets.append(actors := actors_of(actors_spec(FOUR_BUCKETS), tmp_path, 2))
        assert not actors.start(), "all actors of the killed driver are kept"
        standing = actors.load(actors.materialise())
        assert (standing.trainer_version, standing.engine_versions) == (0, (-1, -1))
        assert [receipt.instance for receipt in actors.sync(0)] == [0, 1]
        assert experience_of(actors, 2) == undisturbed


class Rank:
    """A rank that has only weights, of `COUNT` MiB."""

    def __init__(self) -> None:
        self._buckets: Iterator[WeightBucket] = iter(())

    def export(self, term: int, version: int, number: int) -> tuple[bool, WeightBucket]:
        if number == 0:
            tensors = ((f"{place}", np.full(MIB, place, np.uint8)) for place in range(COUNT))
            self._buckets = buckets_of(tensors, MIB)
        bucket = next(self._buckets)
        return bucket.last, bucket


class Engine:
    """A slow engine."""

    def __init__(self) -> None:
        self._sums: list[int] = []

    def begin_update(self, term: int, version: int) -> None:
        self._sums = []

    def take(self, term: int, bucket: WeightBucket) -> None:
        time.sleep(0.05)
        self._sums += [int(piece.values.sum()) for piece in bucket.pieces()]

    def end_update(self, term: int) -> SyncReceipt:
        assert self._sums == [MIB * place for place in range(COUNT)]
        return SyncReceipt(0, 0, 0.0)


class Calls:
    """Waits for calls as `RunActors` does, but does not record failed actors."""

    def get(self, references: list[Any], what: str, awaited: list[str], seconds: float | None = None) -> list[Any]:
        return metered_get(BytesMeter(), references, 150.0, what, UNINTERRUPTED)


def test_at_most_two_buckets_are_in_the_object_store(attached: Head) -> None:
    """Uses the store's own count of primary copies; it drops unneeded ones once a second or when it needs room."""
    node = living_nodes()[0]

    def used() -> int:
        return int(
            get_memory_info_reply(None, node.address, node.port, 5.0).store_stats.object_store_bytes_primary_copy
        )

    rank, *engines = (ray.remote(num_cpus=0)(kind).remote() for kind in (Rank, Engine, Engine))
    peak = [0]
    over = threading.Event()
    before = used()

    def watch() -> None:
        while not over.wait(0.005):
            peak.append(used() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        sync_through_store(Calls(), 1, 0, SyncParties([rank], engines, ["rank"], ["engines"]))  # type: ignore[arg-type]
    finally:
        over.set()
        watching.join()
        for actor in (rank, *engines):
            ray.kill(actor)
    assert MIB <= max(peak) < 3.1 * MIB, f"of {COUNT} MiB; a third bucket may be leaving as a new one arrives"
