"""Samplers of a workload in a spec: what they take of the devices, what goes with them, and what may change later."""

from __future__ import annotations

from typing import Any

import pytest

from flows.branching.spec_changes import keys_read_by_samples, keys_read_by_updates
from yatt_core.cluster.seating import pool_layout
from yatt_core.errors import ConfigurationError
from yatt_core.planning.start import actors_of
from yatt_core.run_actors.process_use import process_names
from yatt_core.spec import RunSpec, parse_spec


def sampled(workload: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    """Returns a spec with three samplers and two ranks."""
    tree = {
        "name": "sampled",
        "iterations": 1,
        "workload": {"kind": "tests.workloads.counting:Counting", "sampled_by": "rollout", **(workload or {})},
        "rollout": {"engine": {"kind": "torch", "instances": 3}},
        "trainer": {"engine": {"kind": "torch", "ranks": 2}},
        **changes,
    }
    return parse_spec(tree, "test")


def test_samplers_are_rollout_instances() -> None:
    spec = sampled()
    assert (spec.devices, spec.engine_instances, pool_layout(spec).ranks) == (3, 3, 3)
    assert actors_of(spec) == {"rollout": 3, "trainer": 2}
    assert [name for name in process_names(spec) if "rollout" in name] == ["rollout-0", "rollout-1", "rollout-2"]


def test_without_them_the_ranks_sample_as_ever() -> None:
    spec = sampled({"sampled_by": "trainer"})
    assert (spec.devices, spec.engine_instances, pool_layout(spec).ranks) == (2, 0, 0)
    assert actors_of(spec) == {"trainer": 2}


def test_split_gives_them_devices_of_their_own() -> None:
    assert sampled(placement={"mode": "split"}).devices == 5
    assert not sampled({"sampled_by": "trainer"}).splits_samplers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"placement": {"mode": "dynamic"}}, r"placement\.mode: .*expected colocate or split \(given: dynamic\)"),
        ({"placement": {"mode": "split", "judges": 1}}, r"placement\.judges: a workload of your own has no judges"),
        ({"rollout": {"engine": {"kind": "virtual"}}}, r"rollout\.engine\.kind: .* is not simulated; expected torch"),
        ({"rollout": {"engine": {"kind": "vllm"}}}, r"rollout\.engine\.kind: .* answers no prompts; expected torch"),
    ],
)
def test_what_does_not_go_with_them_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sampled(**changes)


def test_a_language_model_is_not_sampled_by_them() -> None:
    with pytest.raises(ConfigurationError, match=r"sampled_by: only a workload of your own has it"):
        sampled({"kind": "language"})


def test_their_number_may_change_at_any_commit_and_that_of_other_engines_may_not() -> None:
    fewer = sampled(rollout={"engine": {"kind": "torch", "instances": 1}})
    assert keys_read_by_updates(sampled(), fewer) == keys_read_by_samples(sampled(), fewer) == []
    half = sampled(rollout={"engine": {"kind": "torch", "instances": 3, "dtype": "bfloat16"}})
    assert keys_read_by_updates(sampled(), half) == keys_read_by_samples(sampled(), half) == ["rollout.engine.dtype"]
