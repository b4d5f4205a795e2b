"""`yatt plan` of a workload of one's own: tables and JSON, what does not fit, and what a class does not say."""

from __future__ import annotations

from tests.needs import NEEDS_DIFFUSERS
from tests.ops.conftest import Yatt
from tests.services import ROOT

COUNTING = str(ROOT / "tests" / "workloads" / "counting.yaml")
SHAPES = str(ROOT / "configs" / "shapes.yaml")
STATED = ("--set", "workload.kind=tests.workloads.stated:StatedCounting")


def test_a_plan_for_people_and_for_programs(yatt: Yatt) -> None:
    samplers = ("--set", "workload.sampled_by=rollout", "--set", "rollout.engine.instances=2")
    answer = yatt("plan", COUNTING, *STATED, *samplers, "--cluster", "2xH200")
    assert answer.code == 0
    for part in (
        "counting on 2xH200 (2 devices): 4 B parameters, 2 B of them trained",
        "it fits",
        "2 processes, weights in float32",
        "work: image steps 12,000",
        "Memory of the fullest device",
        "host memory",
        "numbers are round",
        "`yatt check` measures them",
    ):
        assert part in answer.out
    assert "KV cache" not in answer.out
    document = yatt("plan", COUNTING, *STATED, *samplers, "--cluster", "2xH200", "-o", "json").document
    assert document["fits"] and document["workload"] == "tests.workloads.stated:StatedCounting"
    assert (document["parameters"], document["trained"], document["state_bytes"]) == (4e9, 2e9, 48e9)
    assert document["placement"]["samplers"] == {"instances": 2, "dtype": "float32"}
    assert [row["stage"] for row in document["memory"]] == ["collect", "prepare", "learn", "sync", "evaluate"]
    assert document["memory"][2]["roles"]["trainer"]["gradients"] == 16e9


def test_an_impossible_plan(yatt: Yatt) -> None:
    answer = yatt("plan", COUNTING, *STATED, "--cluster", "1xRTX-4090")
    assert answer.code == 2
    for part in ("it does not fit", "too much", "learn: ", "more than a device's memory has"):
        assert part in answer.out


def test_what_a_plan_cannot_say(yatt: Yatt) -> None:
    answer = yatt("plan", COUNTING)
    assert answer.code == 2 and answer.out == ""
    assert "counting.yaml: workload.kind: tests.workloads.counting:Counting does not say what it needs" in answer.err
    assert "it lacks the method needs(ranks, sampler_dtype) of StatesNeeds" in answer.err
    answer = yatt("plan", COUNTING, *STATED, "--response-tokens", "300:0.5")
    assert answer.code == 2 and "--response-tokens: is for language models" in answer.err


@NEEDS_DIFFUSERS
def test_diffusion_is_planned(yatt: Yatt) -> None:
    document = yatt("plan", SHAPES, "--cluster", "2xcore", "-o", "json").document
    assert document["fits"] and document["placement"] == {"trainer": {"ranks": 1}, "samplers": None}
    stages = {row["stage"]: row["roles"]["trainer"] for row in document["memory"]}
    assert list(stages) == ["prepare", "learn", "evaluate"]
    learn = stages["learn"]
    assert learn["gradients"] == 4 * document["trained"] and learn["optimizer"] > 2 * learn["gradients"]
    assert learn["copies"] == document["state_bytes"] and learn["activations"] > 0
    sampled = ("--set", "workload.sampled_by=rollout", "--set", "rollout.engine.instances=2")
    answer = yatt("plan", SHAPES, "--cluster", "8xH200", *sampled)
    assert answer.code == 0
    for part in ("it fits", "sampler", "image steps 1,152", "GB per node"):
        assert part in answer.out
