"""Ranks get seats by topology: groups within a node, as few nodes as possible, and errors that name what does not fit."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.services import ROOT
from yatt_core.cluster.devices import Device
from yatt_core.cluster.reservation import NodeReservation, lacking
from yatt_core.cluster.seating import (
    RankLayout,
    check_seats,
    fewest_nodes,
    instance_seats,
    labels_of,
    layout_of,
    most_ranks,
    pool_layout,
    seat_order,
    together,
)
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer

NODES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)
SIZES = st.sampled_from([1, 2, 4])


def test_a_node_that_holds_all_ranks_is_not_shared_out() -> None:
    order = seat_order({"a": 4, "b": 8}, RankLayout(8))
    assert order == [("b", number) for number in range(8)] + [("a", number) for number in range(4)]
    assert {node for node, _ in seat_order({"a": 4, "b": 8}, RankLayout(4))[:4]} == {"a"}
    assert Counter(node for node, _ in seat_order({"a": 4, "b": 8, "c": 8}, RankLayout(12))[:12]) == {"b": 8, "a": 4}


def test_ranks_beyond_the_last_device_share_devices_only_if_they_may() -> None:
    assert seat_order({"a": 1, "b": 2}, layout_of(TorchTrainer(ranks=5))) == [("b", 0), ("b", 1), ("a", 0)]
    with pytest.raises(
        ConfigurationError, match=r"trainer\.engine\.ranks: .* 5 .*2 devices \(b\); 1 device \(a\).* 3\b"
    ):
        check_seats({"a": 1, "b": 2}, layout_of(Fsdp2Trainer(ranks=5)))


def megatron(tensors: int, stages: int, copies: int) -> RankLayout:
    sizes = {"tensor_model_parallel_size": tensors, "pipeline_model_parallel_size": stages}
    return layout_of(MegatronTrainer(**sizes, data_parallel_size=copies))


def test_a_layout_that_the_nodes_cannot_hold_is_refused_by_the_key_to_change() -> None:
    nodes = {"a": 6, "b": 6}
    check_seats(nodes, megatron(4, 2, 1))
    for layout, key, expected in (
        (megatron(8, 1, 1), "tensor_model_parallel_size", 6),
        (megatron(4, 3, 1), "pipeline_model_parallel_size", 2),
        (megatron(4, 1, 3), "data_parallel_size", 2),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"trainer\.engine\.{key}: .*6 devices each \(a, b\).* {expected}\b"
        ):
            check_seats(nodes, layout)
    assert most_ranks(nodes, megatron(4, 1, 0)) == 8
    with pytest.raises(ConfigurationError, match=r"8 devices each \(16 nodes\)"):
        check_seats({f"n{number}": 8 for number in range(16)}, megatron(16, 1, 1))


@given(NODES, SIZES, st.integers(1, 12))
def test_groups_stay_within_a_node_and_use_as_few_nodes_and_devices_as_possible(
    nodes: dict[str, int], size: int, groups: int
) -> None:
    layout = RankLayout(groups * size, size)
    if sum(count // size for count in nodes.values()) < groups:
        with pytest.raises(ConfigurationError):
            seat_order(nodes, layout)
        return
    order = seat_order(nodes, layout)
    assert sorted(order) == sorted((node, number) for node in nodes for number in range(nodes[node]))
    ranks = [node for node, _ in order[: layout.ranks]]
    assert all(len(set(ranks[start : start + size])) == 1 for start in range(0, layout.ranks, size))
    used = list(dict.fromkeys(ranks))
    assert [node for node, _ in itertools.groupby(ranks)] == used, "the ranks of a node follow each other"
    best = min(
        (len(some), sum(nodes[node] for node in some))
        for count in range(1, len(nodes) + 1)
        for some in itertools.combinations(nodes, count)
        if sum(nodes[node] // size for node in some) >= groups
    )
    assert (len(used), sum(nodes[node] for node in used)) == best
    assert set(fewest_nodes(nodes, groups, size)) == set(used)


@given(
    NODES, st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4)), SIZES, st.integers(1, 4), st.integers(1, 12)
)
def test_what_is_reserved_holds_the_ranks_whenever_the_nodes_do(
    nodes: dict[str, int], held: dict[str, int], size: int, groups: int, instances: int
) -> None:
    devices = [Device(0, "core", node, f"{node}:core{n}") for node, count in nodes.items() for n in range(count)]
    layout = RankLayout(groups * size, size)
    kept = {node: count for node, count in held.items() if node in nodes}
    wanted = max(layout.ranks, instances)
    added = lacking(devices, {node: NodeReservation("00", count) for node, count in kept.items()}, (), wanted, layout)
    assert not added.keys() & kept.keys(), "a group never grows"
    assert all(count <= nodes[node] for node, count in added.items())
    reserved = kept | added
    usable = {node: kept.get(node, nodes[node]) for node in nodes}
    if sum(count // size for count in usable.values()) >= groups:
        check_seats(reserved, layout)
    assert sum(reserved.values()) >= min(wanted, sum(usable.values()))


def test_nodes_on_one_host_have_names_of_their_own() -> None:
    devices = [Device(0, "core", node, f"{host}:core0") for node, host in (("1" * 9, "x"), ("2" * 9, "x"), ("3", "y"))]
    assert labels_of(devices) == {"1" * 9: "x (11111111)", "2" * 9: "x (22222222)", "3": "y"}


def rollout_spec(instances: int, tensors: int, judge: int = 0) -> RunSpec:
    judged = f"rewards.parts.1.engine={{kind: vllm, tensor_parallel_size: {judge}}}"
    engine = f"rollout.engine={{kind: vllm, instances: {instances}, tensor_parallel_size: {tensors}}}"
    changes = [engine, "exact=false", *([judged] if judge else [])]
    return load_spec(ROOT / "configs" / ("genrm.yaml" if judge else "vllm.yaml"), changes)


def test_an_engine_of_several_devices_has_them_on_one_node() -> None:
    layout = pool_layout(rollout_spec(2, 2))
    assert (layout.ranks, layout.together, rollout_spec(2, 2).devices) == (4, 2, 4)
    nodes = [node for node, _ in seat_order({"a": 3, "b": 3}, RankLayout(4, shares=True))]
    assert instance_seats(nodes, layout) == [((0, 1),), ((3, 4),)], (
        "the third device of each node has no neighbour left"
    )
    assert instance_seats(["a", "b"], pool_layout(rollout_spec(3, 1))) == [((0,),), ((1,),), ((0,),)], (
        "single devices are shared"
    )


def staged_spec(instances: int, tensors: int, stages: int, judge: int = 0) -> RunSpec:
    engine = (
        f"{{kind: vllm, instances: {instances}, tensor_parallel_size: {tensors}, pipeline_parallel_size: {stages}}}"
    )
    judged = f"rewards.parts.1.engine={{kind: vllm, tensor_parallel_size: {judge}}}"
    changes = [f"rollout.engine={engine}", "exact=false", *([judged] if judge else [])]
    return load_spec(ROOT / "configs" / ("genrm.yaml" if judge else "vllm.yaml"), changes)


def test_pipeline_stages_are_on_several_nodes_only_if_no_node_holds_them() -> None:
    layout = pool_layout(staged_spec(2, 2, 4))
    assert instance_seats("a" * 8 + "b" * 9, layout) == [(tuple(range(8)),), (tuple(range(8, 16)),)]
    halves = [((0, 1, 2, 3), (5, 6, 7, 8)), ((10, 11, 12, 13), (15, 16, 17, 18))]
    assert instance_seats("aaaaabbbbbcccccddddd", layout) == halves, "a tensor-parallel group is never divided"
    quarters = instance_seats("aaabbbcccddd" + "eeefffggghhh", layout)
    assert [len(parts) for parts in quarters] == [4, 4]
    assert quarters[0] == ((0, 1), (3, 4), (6, 7), (9, 10)), "the third device of each node has no neighbour left"


def test_stages_that_the_nodes_cannot_hold_are_refused_by_the_key_to_change() -> None:
    check_seats({"a": 2, "b": 2}, pool_layout(staged_spec(1, 2, 2)))
    for nodes, spec, message in (
        ({"a": 1, "b": 1}, staged_spec(1, 2, 2), r"tensor_parallel_size: 2 devices of one node.* 1\b"),
        ({"a": 2, "b": 3}, staged_spec(1, 2, 4), r"pipeline_parallel_size: .* needs 8 devices, in groups of 2 .* 2\b"),
        ({"a": 2, "b": 2}, staged_spec(2, 2, 2), r"instances: .* 8 devices, in groups of 2 on one node.* 1\b"),
    ):
        with pytest.raises(ConfigurationError, match=r"^rollout\.engine\." + message):
            check_seats(nodes, pool_layout(spec))


def test_a_judge_has_the_devices_of_one_node() -> None:
    layout = pool_layout(staged_spec(1, 1, 4, judge=2))
    assert instance_seats("aabb", layout) == [((0, 1), (2, 3))]
    with pytest.raises(ConfigurationError, match="4 devices, in groups of 2 on one node"):
        check_seats({"a": 3, "b": 1}, layout)
    with pytest.raises(ConfigurationError, match=r"^rewards\.parts\.1\.engine\.tensor_parallel_size"):
        check_seats({"a": 2, "b": 2}, pool_layout(staged_spec(1, 1, 2, judge=4)))


@given(
    nodes=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1),
    tensors=st.sampled_from((1, 2, 4)),
    stages=st.sampled_from((1, 2, 3, 4, 6)),
    instances=st.integers(1, 3),
)
def test_every_dealt_instance_is_whole_and_no_seat_is_dealt_twice(
    nodes: dict[str, int], tensors: int, stages: int, instances: int
) -> None:
    layout = pool_layout(staged_spec(instances, tensors, stages))
    if layout.together == 1:
        return
    seats = [node for node, count in nodes.items() for _ in range(count)]
    dealt = instance_seats(seats, layout)
    flat = [seat for parts in dealt for part in parts for seat in part]
    assert len(flat) == len(set(flat)) == len(dealt) * layout.together
    for parts in dealt:
        assert len({len(part) for part in parts}) == 1 and stages % len(parts) == 0
        assert all(len({seats[seat] for seat in part}) == 1 and len(part) % tensors == 0 for part in parts)
    try:
        check_seats(nodes, layout)
    except ConfigurationError:
        assert len(dealt) < instances
    else:
        assert len(dealt) == instances


def test_engines_that_the_nodes_cannot_hold_are_refused_by_the_key_to_change() -> None:
    nodes = {"a": 3, "b": 3}
    check_seats(nodes, pool_layout(rollout_spec(2, 2)))
    with pytest.raises(ConfigurationError, match=r"^rollout\.engine\.instances: .* 6 devices.* 2 on one node.* 2\b"):
        check_seats(nodes, pool_layout(rollout_spec(3, 2)))
    with pytest.raises(
        ConfigurationError, match=r"^rollout\.engine\.tensor_parallel_size: 4 devices of one node.* 3\b"
    ):
        check_seats(nodes, pool_layout(rollout_spec(1, 4)))


def test_an_instance_has_the_devices_of_its_largest_engine() -> None:
    spec = rollout_spec(2, 1, judge=4)
    layout = pool_layout(spec)
    assert (layout.ranks, layout.together, spec.devices) == (8, 4, 8)
    with pytest.raises(ConfigurationError, match=r"^rewards\.parts\.1\.engine\.tensor_parallel_size: 4 devices"):
        check_seats({"a": 3}, layout)


def test_ranks_and_engines_find_places_on_the_same_devices() -> None:
    trainer = RankLayout(6, 2)
    pool = pool_layout(rollout_spec(1, 4))
    assert (together(trainer, pool).ranks, together(trainer, pool).together) == (8, 4)
    devices = [Device(number, "core", node, "") for number, node in enumerate("aaaaaabbbbbbbb")]
    assert lacking(devices, {}, (), 6, together(trainer, pool)) == {"b": 8}
