"""A run on a cluster of three nodes, one of which is killed in the middle of collect while another joins: the same bits.

Rewards are scaled by their running moments, which the number of controllers must not show in either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.conftest import wait_until
from tests.cluster.many_nodes import ManyNodes
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery

SHAPE = (
    "iterations=3", "data.prompts_per_iteration=12", "data.logical_shards=6", "rollout.batch_samples=4",
    "algorithm.normalise=group_mean", "algorithm.reward_scaling=running",
)  # fmt: skip


@pytest.mark.timeout(300)
def test_a_node_killed_during_collect_and_one_that_joins_change_nothing(
    driver: Driver, nursery: Nursery, service_environment: Mapping[str, str], tmp_path: Path
) -> None:
    undisturbed = driver.create("virtual.yaml", *SHAPE)
    driver.drive(undisturbed)
    environment = {**service_environment, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with ManyNodes(["a", "b", "c"], environment) as cluster:
        elsewhere = Driver(tmp_path / "nodes", nursery, {"YATT_RAY_ADDRESS": cluster.address})
        run = elsewhere.create(
            "virtual.yaml", *SHAPE, "controllers.count=1", "controllers.per=node", "rollout.engine.base_seconds=0.1"
        )
        process = elsewhere.start(run)
        first = elsewhere.home.run_folder(run) / "experience" / "b000" / "i000001"
        wait_until(lambda: len(list(first.glob("w00-s*/*.arrow"))) > 1 or process.ended() is not None, 90)
        cluster.kill("c")
        cluster.add("d")
        assert process.wait(150) == 0, process.output
    assert same_result(driver.results(undisturbed), elsewhere.results(run))
    with elsewhere.ledger() as ledger:
        staffs = [link.body["nodes"] for link in ledger.events.of_kind(run, "controllers")]
        lost = {link.body["actor"] for link in ledger.events.of_kind(run, "actor_lost")}
        assert ledger.events.verify(run) is None
    assert staffs[0] == {"a": 1, "b": 1, "c": 1}
    assert staffs[-1] == {"a": 1, "b": 1, "d": 1}
    assert any(name.startswith("controller") for name in lost)
