"""Judges of a spec: a generative part becomes a role, whatever its engine; rules alone need no judge."""

from __future__ import annotations

from typing import Any

from tests.planning.examples import SHORT, cluster, judged, spec_7b
from yatt_core.placement.workload import EngineConstants
from yatt_core.planning.account import JUDGE
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.judges import GenerationEngine, JudgeRole, judges_of
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.roles import Roles, roles_of
from yatt_core.planning.time.times import engine_constants, switch_costs
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout

QUICKSTART = ("rollout.engine={kind: torch, instances: 2}", "trainer.engine={kind: torch, micro_batch_tokens: 16384}")


def roles(engine: dict[str, Any], model: dict[str, Any] | None, *overrides: str) -> tuple[Roles, JudgeRole]:
    """Returns the roles with a judge of two judgements per response, whose template is 40 letters and a placeholder."""
    part = {"template": "x" * 40 + "{response}", "judgements": 2, "max_new_tokens": 8, "engine": engine, "model": model}
    found = roles_of(spec_7b(*overrides, judged(**part)), Assumptions(prompt=SHORT.prompt, response=SHORT.response))
    assert found.judge is not None
    return found, found.judge


SMALL = {"kind": "sizes", "hidden_size": 128, "layers": 2, "heads": 4, "key_value_heads": 4, "intermediate_size": 344}


def test_rules_alone_need_no_judge():
    assert judges_of(spec_7b(), 300) == ()


def test_a_vllm_judge_follows_its_part():
    _, found = roles({"kind": "vllm", "tensor_parallel_size": 2}, {"kind": "sizes"})
    assert (found.name, found.place) == ("judge", "rewards.parts.1")
    assert found.engine == VllmRollout(tensor_parallel_size=2)
    assert (found.judgements, found.max_new_tokens, found.template_tokens) == (2, 8, 10)
    assert found.shape == roles_of(spec_7b(), SHORT).policy


def test_a_small_trained_judge_has_the_shape_of_its_network():
    small, found = roles({"kind": "torch"}, SMALL, *QUICKSTART)
    assert found.engine == TorchRollout(instances=2)
    assert found.shape.hidden == 128
    demand = demand_of(small, cluster("2xcore"), SHORT)
    held = next(row for row in demand.roles if row.role == "judge").at(JUDGE)
    assert held.weights == 2 * 4 * found.shape.parameters, "one engine on each core, with shared memory"
    assert held.kv_cache > 0


def test_a_torch_judge_respects_the_limit_of_its_part():
    def cache(most: int) -> int:
        small, _ = roles({"kind": "torch", "max_num_seqs": most}, SMALL, *QUICKSTART)
        engine = demand_of(small, cluster("2xcore"), SHORT).judge
        assert engine is not None
        return engine.sequences

    assert [cache(most) for most in (1, 7, 64, 10**6)] == [2, 6, 64, 512], "whole responses, of two judgements each"


VIRTUAL = (
    "rollout.engine={kind: virtual, instances: 2, clock_factor: 4.0, max_num_seqs: 16, seconds_per_context_token: 0.008}",
    "rollout.engine.switch_seconds=2.0",
    "rollout.engine.repartition_seconds=3.0",
    "trainer.engine={kind: virtual}",
    "rollout.batch_samples=32",
)


def test_virtual_engines_need_no_memory_and_use_the_times_in_the_spec():
    times = {"base_seconds": 0.01, "seconds_per_prompt_token": 0.002, "clock_factor": 2.0, "median_tokens": 9.0}
    virtual, found = roles({"kind": "virtual", "max_num_seqs": 8, **times}, None, *VIRTUAL)
    assert isinstance(found.engine, VirtualRollout)
    demand = demand_of(virtual, cluster("2xcore"), SHORT)
    assert {total.tensors for total in demand.totals} == {0}
    assert virtual.lengths.judge.median == 9.0
    judge = constants_of(found.engine, virtual, demand.judge)
    assert (judge.base_s, judge.per_prompt_token_s, judge.max_concurrent) == (0.005, 0.001, 8)
    rollout = constants_of(virtual.rollout, virtual, demand.rollout)
    assert (rollout.per_context_token_s, rollout.max_concurrent) == (0.002, 16), (
        "the engine's own limit, not that of a decode batch"
    )
    switch = switch_costs(virtual, demand, cluster("2xcore"), SHORT)
    assert (switch.role_s, switch.repartition_s, switch.train_s) == (0.5, 0.75, 0.0)


def constants_of(engine: GenerationEngine, roles: Roles, memory: EngineMemory | None) -> EngineConstants:
    assert memory is not None
    return engine_constants(engine, roles.policy, memory, cluster("2xcore").card, SHORT)
