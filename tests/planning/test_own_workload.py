"""Plans of workloads of one's own: what a class says, and what ranks, samplers and processes hold on described devices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.stated import GB
from yatt_core.errors import ConfigurationError
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import DescribedCluster, parse_cluster, read_cards
from yatt_core.planning.own_workload import WorkloadPlan, plan_workload
from yatt_core.spec import parse_spec

CARDS = read_cards()
RUNTIME = Assumptions().core_runtime
BUCKET = 10**9


def planned(
    devices: str, kind: str = "StatedCounting", *, ranks: int = 1, samplers: int = 0, **settings: Any
) -> WorkloadPlan:
    workload: dict[str, Any] = {"kind": f"tests.workloads.stated:{kind}", "settings": settings}
    tree: dict[str, Any] = {
        "name": "stated",
        "iterations": 1,
        "workload": workload,
        "trainer": {"engine": {"kind": "torch", "ranks": ranks}, "sync_bucket_bytes": BUCKET},
    }
    if samplers:
        workload["sampled_by"] = "rollout"
        tree["rollout"] = {"engine": {"kind": "torch", "instances": samplers}}
    return plan_workload(parse_spec(tree, "test"), cluster(devices), Assumptions())


def cluster(devices: str) -> DescribedCluster:
    """Returns devices; cores have 40 GB each."""
    return parse_cluster(devices, CARDS | {"core": CARDS["core"].model_copy(update={"memory_gb": 40})})


def test_a_rank_alone() -> None:
    made = planned("4xcore")
    trainer, frozen = made.roles
    totals = {total.stage: total.tensors for total in made.totals}
    assert totals == {"prepare": 99 * GB, "learn": 117 * GB, "evaluate": 102 * GB}
    learn = trainer.at("learn")
    assert (learn.weights, learn.gradients, learn.optimizer) == (16 * GB, 16 * GB, 32 * GB)
    assert (learn.activations, learn.copies) == (3 * GB, 48 * GB)
    assert frozen.role == "trainer: frozen" and frozen.at("learn").weights == 2 * GB
    assert {total.runtime for total in made.totals} == {RUNTIME}
    assert made.fits and made.place.owner == "node"
    assert "numbers are round" in made.assumed


def test_what_does_not_fit_is_named() -> None:
    made = planned("3xcore", ranks=2)
    # Two ranks share the node: each has whole weights, and its half of all else.
    assert [(each.stage, each.where) for each in made.shortages] == [
        ("learn", "a node's memory"),
        ("evaluate", "a node's memory"),
    ]
    learn = made.shortages[0]
    assert not made.fits and learn.bytes == 2 * (16 + 8 + 16 + 2 + 3 + 24) * GB + 2 * RUNTIME - 120 * GB
    assert planned("3xcore,2 nodes", ranks=2).fits


def test_samplers_beside_ranks_on_cores() -> None:
    made = planned("8xcore", ranks=2, samplers=3)
    assert [total.stage for total in made.totals] == ["collect", "prepare", "learn", "sync", "evaluate"]
    rows = {row.role: row for row in made.roles}
    assert list(rows) == ["trainer", "trainer: frozen", "sampler", "sampler: frozen"]
    collect = rows["sampler"].at("collect")
    assert (collect.weights, collect.activations) == (3 * 8 * GB, 3 * 5 * GB)
    assert rows["sampler"].at("sync").copies == 3 * 2 * BUCKET, "two buckets, which hold less than it gets"
    assert rows["trainer"].at("sync").copies == 2 * (24 * GB + 2 * BUCKET)
    assert rows["sampler: frozen"].at("learn").weights == 3 * GB
    assert rows["trainer"].runtime["learn"] == 2 * RUNTIME and rows["sampler"].runtime["learn"] == 3 * RUNTIME


def test_checkpoints_and_buckets_are_in_the_memory_of_a_gpus_host() -> None:
    made = planned("2xH200", ranks=2, samplers=2)
    rows = {row.role: row for row in made.roles}
    sync = rows["trainer"].at("sync")
    assert sync.copies == 2 * BUCKET and rows["trainer"].at("learn").copies == 0
    hosts = {total.stage: total.host for total in made.totals}
    assert hosts["learn"] == 2 * 24 * GB and hosts["sync"] == 2 * 24 * GB + 2 * 2 * BUCKET + 2 * 2 * BUCKET
    assert made.place.owner == "device" and made.totals[0].capacity == CARDS["H200"].memory
    assert rows["sampler"].at("sync").copies == 0


def test_a_class_that_leaves_devices_alone_is_in_their_host() -> None:
    made = planned("2xH200", "StatedOnHost", ranks=2)
    assert made.place.owner == "node" and made.totals[0].capacity == 2 * 256 * GB
    assert made.roles[0].at("learn").weights == 2 * 16 * GB


def test_what_a_class_does_not_say_or_says_wrongly() -> None:
    with pytest.raises(ConfigurationError, match=r"tests\.workloads\.stated:StatedCounting: needs failed: .*KeyError"):
        planned("1xcore", broken="needs")
    with pytest.raises(ConfigurationError, match=r"needs returned .*expected Needs with a sampler"):
        planned("1xcore", samplers=1, broken="sampler")
