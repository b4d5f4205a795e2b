"""Judges of a spec: a generative part becomes a role, whatever its engine; rules alone have none."""

from __future__ import annotations

from typing import Any

from tests.planning.examples import SHORT, cluster, spec_7b
from yatt_core.planning.account import JUDGE
from yatt_core.planning.demand import demand_of
from yatt_core.planning.judges import judge_role, judges_of
from yatt_core.planning.roles import JudgeRole, roles_of
from yatt_core.spec.accelerated import VllmRollout
from yatt_core.spec.judges import GenerativePart
from yatt_core.spec.rollout import TorchRollout, VirtualRollout

QUICKSTART = ("rollout.engine={kind: torch, instances: 2}", "trainer.engine={kind: torch, micro_batch_tokens: 16384}")


def role(engine: dict[str, Any], model: dict[str, Any] | None, *overrides: str) -> JudgeRole:
    """Of a part with two judgements and a template of 40 characters beside its placeholder."""
    part = {
        "kind": "generative", "name": "right", "template": "x" * 40 + "{response}", "judgements": 2, "max_new_tokens": 8,
        "engine": engine, "model": model,
    }  # fmt: skip
    return judge_role(GenerativePart.model_validate(part), "rewards.parts.1", spec_7b(*overrides), 300)


def test_rules_alone_have_no_judge():
    assert judges_of(spec_7b(), 300) == ()


def test_a_vllm_judge_is_as_its_part_says():
    found = role({"kind": "vllm", "tensor_parallel_size": 2}, {"kind": "sizes"})
    assert found.engine == VllmRollout(tensor_parallel_size=2)
    assert (found.judgements, found.max_new_tokens, found.template_tokens) == (2, 8, 10)
    assert found.shape == roles_of(spec_7b(), SHORT).policy


def test_a_small_judge_that_is_trained_has_its_network_s_shape():
    found = role({"kind": "torch"}, {"kind": "trained"}, *QUICKSTART)
    assert found.engine == TorchRollout(instances=2)
    assert found.shape.hidden == 128
    demand = demand_of(roles_of(spec_7b(*QUICKSTART), SHORT, [found]), cluster("2xcore"), SHORT)
    held = next(row for row in demand.roles if row.role == "judge").at(JUDGE)
    assert held.weights == 2 * 4 * found.shape.parameters, "of the engines on both cores, which share the memory"
    assert held.kv_cache > 0


def test_a_virtual_judge_takes_no_memory():
    times = {"base_seconds": 0.01, "seconds_per_sequence": 0.001, "clock_factor": 2.0, "median_tokens": 9.0}
    found = role({"kind": "virtual", **times}, None)
    assert isinstance(found.engine, VirtualRollout)
    assert found.engine.base_seconds == 0.01
