"""A sync of virtual engines that stops halfway leaves no half-updated engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.conftest import Head
from tests.cluster.run_actors import (
    DriverBeat,
    actors_of,
    actors_spec,
    begin,
    driver_killed_at,
    pid_of,
    shard_tasks,
    while_dirty,
)
from tests.waiting import wait_until
from yatt_core.errors import LostActorError
from yatt_core.run_actors.run_actors import RunActors

NAMESPACE = "weights"


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
def test_an_actor_killed_in_mid_sync_leaves_the_engines_dirty(
    actor_sets: list[RunActors], tmp_path: Path, undisturbed: list[str], lost: str
) -> None:
    with DriverBeat(1):
        actor_sets.append(actors := actors_of(actors_spec(), tmp_path, 1))
        actors.start()
        actors.load(actors.materialise())
        actors.sft()

        def strike() -> None:
            pid = pid_of(lost)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())

        while_dirty(actors, strike)
        with pytest.raises(LostActorError, match=lost):
            actors.sync(0)
        created = actors.start()
        assert set(created) == ({"trainer-0", "trainer-1"} if lost == "trainer-0" else {lost})
        standing = actors.load(actors.materialise())
        held = -1 if lost == "trainer-0" else 0
        assert standing.engine_versions == (held, -1), "replaced engines and those without new weights have no version"
        assert actors.sft().weights_digest
        assert [receipt.instance for receipt in actors.sync(0)] == ([0, 1] if lost == "trainer-0" else [1])
        assert experience_of(actors, 1) == undisturbed


def test_a_driver_killed_in_mid_sync_leaves_the_engines_dirty(
    attached: Head, actor_sets: list[RunActors], tmp_path: Path, undisturbed: list[str]
) -> None:
    driver_killed_at("dirty", attached, NAMESPACE, tmp_path)
    with DriverBeat(2):
        actor_sets.append(actors := actors_of(actors_spec(), tmp_path, 2))
        assert not actors.start(), "all actors of the killed driver are kept"
        standing = actors.load(actors.materialise())
        assert (standing.trainer_version, standing.engine_versions) == (0, (-1, -1))
        assert [receipt.instance for receipt in actors.sync(0)] == [0, 1]
        assert experience_of(actors, 2) == undisturbed
