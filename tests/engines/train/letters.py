"""A task that is learned in seconds: repeat the last of three letters. Its inputs are built as a run builds them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.input_building.materialise import materialise
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec

LETTERS = "abcdef"


def letters_spec(
    folder: Path, ranks: int = 1, lora: dict[str, Any] | None = None, epsilon: float = 1e-4, **sft: Any
) -> RunSpec:
    path = folder / "letters.jsonl"
    rows = [{"prompt": " ".join(word), "answer": word[-1]} for word in itertools.product(LETTERS, repeat=3)]
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = {"kind": "from_config", "hidden_size": 32, "heads": 2, "key_value_heads": 2, "intermediate_size": 64}
    return RunSpec.model_validate(
        {
            "name": "letters",
            "model": model,
            "sft": {"demonstrations": 60, "batch_size": 32, "learning_rate": 3e-3, "lr_warmup_steps": 5, **sft},
            "data": {"sources": [{"kind": "jsonl", "path": str(path)}], "held_out": 20, "probe": 33},
            "rollout": {"max_new_tokens": 3},
            "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
            "algorithm": {"mini_batches": 2, "kl": {"where": "reward"}},
            "trainer": {
                "engine": {"kind": "torch", "ranks": ranks, "micro_batch_tokens": 100},
                "optimizer": {"learning_rate": 1e-2, "epsilon": epsilon},
                "lora": lora,
            },
        }
    )


def letters_engine(spec: RunSpec, run_folder: Path) -> TorchTrainEngine:
    """Builds an engine on materialised inputs, not yet connected."""
    receipt = materialise(spec, run_folder)
    return TorchTrainEngine(spec, RankContext(run_folder, run_folder / receipt.folder, receipt.model_path, 0))
