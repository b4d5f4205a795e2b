"""The example specs for plans, and devices to plan them for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.cluster import DescribedCluster, parse_cluster, read_cards
from yatt_core.spec import RunSpec, load_spec

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SHORT = Assumptions(prompt=Spread(200, 0.3), response=Spread(300, 0.6), judge=Spread(200, 0.3))
QWEN_14B = {
    "kind": "sizes",
    "hidden_size": 5120,
    "layers": 48,
    "heads": 40,
    "key_value_heads": 8,
    "intermediate_size": 13_824,
}

SMALL_JUDGE = (
    "rewards.parts.1.model={kind: sizes, vocabulary_size: 300, hidden_size: 64, layers: 3, heads: 4, key_value_heads: 4, "
    "intermediate_size: 172, max_positions: 512, tie_embeddings: true}"
)
"""An override that gives the judge of genrm.yaml the sizes of its model, whose folder tests do not have."""


def spec_7b(*overrides: str) -> RunSpec:
    return load_spec(CONFIGS / "plan-7b-grpo.yaml", overrides)


SIZED_BY_THE_PLAN = ("rollout.engine.instances=0", "trainer.engine.data_parallel_size=0")


def spec_72b(*overrides: str) -> RunSpec:
    """Returns the example with as many engines and copies as fit, and the optimizer's state on the host."""
    usual = (*SIZED_BY_THE_PLAN, "trainer.engine.optimizer_cpu_offload=true")
    return load_spec(CONFIGS / "plan-72b-grpo.yaml", (*usual, *overrides))


def cluster(text: str) -> DescribedCluster:
    return parse_cluster(text, read_cards())


def judged(**part: Any) -> str:
    """Returns an override that adds a judge to the rewards: 14 billion parameters on vLLM, with the given changes."""
    usual = {
        "kind": "generative", "name": "judge", "template": "x" * 800 + "{response}", "max_new_tokens": 512,
        "model": QWEN_14B, "engine": {"kind": "vllm"},
    }  # fmt: skip
    parts = [{"name": "exact", "function": "exact_match"}, {**usual, **part}]
    return f"rewards.parts={json.dumps(parts)}"


def on(tensor: int) -> dict[str, Any]:
    """Returns a judge's engine on this many devices."""
    return {"kind": "vllm", "tensor_parallel_size": tensor}
