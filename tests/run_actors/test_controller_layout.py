"""The number and placement of controllers: as many as requested, or a number per node while nodes come and go."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.run_actors.controller_layout import lay_out_controllers
from yatt_core.spec.sections.controllers import ControllerSpec

PER_NODE = ControllerSpec(count=2, per="node")
NODES = st.sets(st.sampled_from("abcde"), min_size=1)


def test_a_number_for_the_run_leaves_placement_to_ray() -> None:
    spec = ControllerSpec(count=3)
    expected = {"controller-0": "", "controller-1": "", "controller-2": ""}
    assert (
        lay_out_controllers(spec, {"a"}, {})
        == lay_out_controllers(spec, {"a", "b"}, {"controller-1": "b", "controller-7": "a"})
        == expected
    )


def test_a_number_per_node_follows_the_nodes() -> None:
    two = lay_out_controllers(PER_NODE, {"a", "b"}, {})
    assert two == {"controller-0": "a", "controller-1": "a", "controller-2": "b", "controller-3": "b"}
    without_a = lay_out_controllers(PER_NODE, {"b"}, two)
    assert without_a == {"controller-2": "b", "controller-3": "b"}, "living controllers keep their name and node"
    assert lay_out_controllers(PER_NODE, {"b", "c"}, without_a) == without_a | {
        "controller-0": "c",
        "controller-1": "c",
    }


def test_a_lost_controller_is_recreated_on_its_node() -> None:
    assert lay_out_controllers(PER_NODE, {"a", "b"}, {"controller-0": "a", "controller-2": "b", "controller-3": "b"}) == {
        "controller-0": "a", "controller-1": "a", "controller-2": "b", "controller-3": "b",
    }  # fmt: skip


def test_a_controller_without_a_known_node_is_replaced() -> None:
    assert lay_out_controllers(ControllerSpec(count=1, per="node"), {"a"}, {"controller-4": ""}) == {
        "controller-0": "a"
    }


@given(st.integers(1, 3), st.lists(NODES, min_size=1, max_size=6))
def test_each_node_has_its_number_and_no_controller_moves(count: int, history: list[set[str]]) -> None:
    spec = ControllerSpec(count=count, per="node")
    living = dict[str, str]()
    for nodes in history:
        before = {name: node for name, node in living.items() if node in nodes}
        living = lay_out_controllers(spec, nodes, living)
        assert before.items() <= living.items()
        assert Counter(living.values()) == dict.fromkeys(nodes, count)
        assert list(living) == sorted(living, key=lambda name: int(name.rpartition("-")[2]))
