"""The example specs for plans, and devices to plan them for."""

from __future__ import annotations

from pathlib import Path

from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.cluster import DescribedCluster, parse_cluster, read_cards
from yatt_core.planning.roles import JudgeRole
from yatt_core.planning.shape import ModelShape
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.accelerated import VllmRollout

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SHORT = Assumptions(prompt=Spread(200, 0.3), response=Spread(300, 0.6), judge=Spread(200, 0.3))
QWEN_14B = ModelShape(152_064, 5120, 48, 40, 8, 128, 13_824, tied=False, biased=True)


def spec_7b(*overrides: str) -> RunSpec:
    return load_spec(CONFIGS / "plan-7b-grpo.yaml", overrides)


def spec_72b(*overrides: str) -> RunSpec:
    return load_spec(CONFIGS / "plan-72b-grpo.yaml", overrides)


def cluster(text: str) -> DescribedCluster:
    return parse_cluster(text, read_cards())


def judge(tensor: int = 1, judgements: int = 1) -> JudgeRole:
    """A judge of 14 billion parameters."""
    return JudgeRole(
        "judge", "rewards.parts.1", QWEN_14B, VllmRollout(tensor_parallel_size=tensor), judgements, max_new_tokens=512
    )
