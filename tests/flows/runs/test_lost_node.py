"""A run on three nodes, one of which is killed in the middle of collect while another joins, ends with the same bits.

Rewards are scaled by running moments, which must not depend on the number of controllers either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.many_nodes import ManyNodes
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery
from tests.waiting import wait_until

SHAPE = (
    "iterations=16", "data.prompts_per_iteration=6", "data.logical_shards=6", "rollout.batch_samples=4",
    "algorithm.advantage.kind=group_mean", "algorithm.reward_scaling=running",
)  # fmt: skip
PER_NODE = ("controllers.count=1", "controllers.per=node", "rollout.engine.base_seconds=0.1")


@pytest.mark.verify
@pytest.mark.timeout(300)
def test_a_node_killed_during_collect_and_one_that_joins_change_nothing(
    driver: Driver, nursery: Nursery, service_environment: Mapping[str, str], tmp_path: Path
) -> None:
    undisturbed = driver.create("virtual.yaml", *SHAPE)
    driver.drive(undisturbed)
    with ManyNodes(["a", "b", "c"], {**service_environment, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}) as cluster:
        several = Driver(tmp_path / "nodes", nursery, {"YATT_RAY_ADDRESS": cluster.address})
        run = several.create("virtual.yaml", *SHAPE, *PER_NODE)
        process = several.start(run)
        experience = several.home.run_folder(run) / "experience" / "b000"
        wait_until(lambda: experience.exists() or process.ended() is not None, 90)
        cluster.add("d")
        wait_until(lambda: is_collecting(experience) or process.ended() is not None, 90)
        cluster.kill("c")
        assert process.wait(150) == 0, process.output
    assert same_result(driver.results(undisturbed), several.results(run))
    with several.ledger() as ledger:
        staffs = [link.body["nodes"] for link in ledger.events.of_kind(run, "controllers")]
        lost = {
            (link.body["actor"].partition("-")[0], link.body["node"])
            for link in ledger.events.of_kind(run, "actor_lost")
        }
        assert ledger.events.verify(run) is None
    assert staffs[0] == {"a": 1, "b": 1, "c": 1}
    assert staffs[-1] == {"a": 1, "b": 1, "d": 1}
    assert ("controller", "c") in lost and {node for _, node in lost} == {"c"}


def is_collecting(experience: Path) -> bool:
    """Returns whether the newest iteration's shards are being made."""
    newest = max(experience.iterdir())
    return any(newest.glob("w00-s*/*.arrow"))
