"""The parts of a start, and the estimate from them, which is compared with what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.services import ROOT
from yatt_core.planning.start import (
    PREFECT,
    RAY,
    WARM_RAY,
    StartEstimate,
    StartParts,
    actors_of,
    count_actors,
    engines_of,
    estimate_start,
)
from yatt_core.spec import RunSpec, load_spec

QUICKSTART = load_spec(ROOT / "configs" / "quickstart.yaml")


def parts_of(of: RunSpec) -> StartParts:
    return StartParts(
        services=(RAY, PREFECT), engines=engines_of(of), actors=actors_of(of), parameters=400_000, prompts=18_639
    )


def estimate(parts: StartParts, cores: int = 2, **changes: Any) -> StartEstimate:
    told: dict[str, Any] = {"inputs_seconds": 0.0, "has_gpus": False, "has_template": True}
    found = estimate_start(parts, cores, **(told | changes))
    assert found is not None
    return found


def test_the_parts_of_the_quickstart() -> None:
    assert engines_of(QUICKSTART) == {"trainer": "torch", "rollout": "torch"}
    assert actors_of(QUICKSTART) == {"controller": 2, "dispatcher": 1, "rollout": 2, "trainer": 2}


def test_a_run_that_samples_nothing_has_ranks_only() -> None:
    of = load_spec(ROOT / "configs" / "dpo.yaml", ["trainer.engine.ranks=3"])
    assert engines_of(of) == {"trainer": "torch"}
    assert actors_of(of) == {"trainer": 3}


def test_actors_are_counted_by_the_role_in_their_names() -> None:
    names = ("trainer-0", "trainer-1", "rollout-0", "controller-11")
    assert count_actors(names) == {"trainer": 2, "rollout": 1, "controller": 1}


def test_parts_are_written_and_read() -> None:
    parts = parts_of(QUICKSTART)
    assert StartParts.from_json(parts.to_json()) == parts


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({}, True),
        ({"parameters": 4_900_000, "prompts": 9_400}, True),
        ({"parameters": 9_900_000, "prompts": 37_000}, True),
        ({"parameters": 10_100_000}, False),
        ({"prompts": 38_000}, False),
        ({"actors": {"trainer": 2}}, False),
    ],
)
def test_starts_are_alike_if_processes_are_and_sizes_nearly(changes: dict[str, Any], alike: bool) -> None:
    parts = parts_of(QUICKSTART)
    assert parts.is_like(replace(parts, **changes)) is alike
    assert replace(parts, **changes).is_like(parts) is alike


def test_the_estimate_of_the_quickstart_is_what_was_measured() -> None:
    found = estimate(parts_of(QUICKSTART), inputs_seconds=4.6)
    assert found.seconds == pytest.approx(21.2, rel=0.1)
    assert sum(found.cpu_seconds.values()) == pytest.approx(32.6, rel=0.1)
    assert found.not_counted == ()
    # Without the process that is copied, as on a machine with GPUs.
    apart = estimate(parts_of(QUICKSTART), inputs_seconds=4.6, has_gpus=True)
    assert apart.seconds == pytest.approx(41.1, rel=0.15)
    assert sum(apart.cpu_seconds.values()) == pytest.approx(65.1, rel=0.1)
    assert apart.not_counted == ("the start of GPUs",)


def test_more_cores_shorten_a_start_down_to_what_waits_for_each_other() -> None:
    seconds = [estimate(parts_of(QUICKSTART), cores, inputs_seconds=4.6).seconds for cores in (1, 2, 4, 64, 128)]
    assert seconds[0] > seconds[1] > seconds[2] >= seconds[3] == seconds[4]
    assert seconds[0] == pytest.approx(sum(estimate(parts_of(QUICKSTART), inputs_seconds=4.6).cpu_seconds.values()))


def test_each_part_has_its_share() -> None:
    parts = parts_of(QUICKSTART)
    usual = estimate(parts)
    assert estimate(replace(parts, services=(RAY,))).seconds < usual.seconds, "the Prefect server is shared"
    warm = estimate(replace(parts, services=(WARM_RAY,)))
    assert usual.cpu_seconds.keys() - warm.cpu_seconds.keys() == {"ray", "prefect", "fork_server"}
    assert warm.seconds < estimate(replace(parts, services=(RAY,))).seconds
    assert estimate(parts, has_template=False).seconds > usual.seconds
    assert estimate(replace(parts, actors={**parts.actors, "trainer": 8})).seconds > usual.seconds
    assert estimate(parts, inputs_seconds=60.0).seconds == pytest.approx(usual.seconds + 60.0)
    large = replace(parts, engines={"trainer": "megatron", "rollout": "vllm"})
    assert estimate(large).cpu_seconds.keys() - usual.cpu_seconds.keys() == {"megatron", "vllm"}
    virtual = replace(parts, engines={"trainer": "virtual", "rollout": "virtual"})
    assert estimate(virtual).seconds < usual.seconds
    assert estimate(virtual, has_gpus=True) == estimate(virtual), "nothing imports torch"


def test_what_was_not_measured_is_not_counted() -> None:
    parts = replace(parts_of(QUICKSTART), parameters=500_000_000, engines={"trainer": "torch", "judges": "torch"})
    assert estimate(parts).not_counted == ("the judges' models", "the loading of a large model")


def test_there_is_no_estimate_for_the_machines_of_a_cluster_that_exists() -> None:
    parts = replace(parts_of(QUICKSTART), services=())
    assert estimate_start(parts, 2, inputs_seconds=0.0, has_gpus=False, has_template=True) is None
