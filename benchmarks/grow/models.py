"""The models of the measures, and the specs that train them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yatt_core.models.model_folder import make_model
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig

SEED = 0
FSDP2: dict[str, Any] = {"kind": "fsdp2", "ranks": 2, "dtype": "float32"}
MEGATRON: dict[str, Any] = {
    "kind": "megatron", "tensor_model_parallel_size": 2, "data_parallel_size": 1, "dtype": "float32",
}  # fmt: skip
TORCH: dict[str, Any] = {"kind": "torch", "ranks": 1}
TINY: dict[str, Any] = {
    "hidden_size": 32, "layers": 2, "heads": 4, "key_value_heads": 2, "intermediate_size": 64, "max_positions": 1024,
}  # fmt: skip


def write_model(folder: Path, vocabulary: int, sizes: dict[str, Any]) -> Path:
    """Writes a Qwen2 of these sizes, with seeded weights in float32, and returns its folder."""
    folder.mkdir()
    make_model(ModelFromConfig(**sizes), vocabulary, SEED, folder)
    return folder


def spec_of(
    engine: dict[str, Any], sizes: dict[str, Any], prompts: int, prompt: int, response: int, kl: float | None = None
) -> RunSpec:
    """Returns the spec of a run with this train engine and 4 samples for each prompt.

    prompt, response: tokens of each.
    kl: coefficient of the KL term; None for no such term.
    """
    tree: dict[str, Any] = {
        "name": "grow", "seed": SEED, "exact": engine.get("dtype") != "bfloat16", "iterations": 10,
        "model": {"kind": "from_config", **sizes},
        "data": {
            "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}], "prompts_per_iteration": prompts,
            "logical_shards": 1, "max_prompt_tokens": prompt,
        },
        "rollout": {
            "engine": {"kind": "torch", "instances": 1}, "samples_per_prompt": 4, "max_new_tokens": response,
            "temperature": 0.8,
        },
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "algorithm": {"kl": None if kl is None else {"coefficient": kl}},
        "trainer": {"engine": engine},
    }  # fmt: skip
    return parse_spec(tree, "benchmarks.grow")
