"""Trainers on rows of preferences, whose inputs are built as a run builds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.preferences import preference_rows
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
from yatt_core.input_building.materialise import materialise
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask, RowsTask, UpdateReceipt
from yatt_core.spec.run import RunSpec

KINDS: dict[str, dict[str, Any]] = {
    "dpo": {"kind": "dpo"},
    "simpo": {"kind": "simpo"},
    "kto": {"kind": "kto"},
    "reward_model": {"kind": "reward_model", "template": "{prompt} {response}"},
    "sft": {"kind": "sft"},
}


def preferred_spec(folder: Path, objective: dict[str, Any], rows: int = 600, **parts: Any) -> RunSpec:
    """Writes rows and returns a spec that learns from them; parts replace its top-level keys."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in preference_rows(rows)))
    answer = "response" if objective["kind"] == "kto" else "answer"
    sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "key_value_heads": 2, "intermediate_size": 64}
    tree: dict[str, Any] = {
        "name": "preferred",
        "iterations": 30,
        "model": {"kind": "from_config", "max_positions": 64, **sizes},
        "data": {
            "sources": [{"kind": "jsonl", "path": str(path), "answer_field": answer}],
            "held_out": rows // 3,
            "prompts_per_iteration": 64,
            "max_prompt_tokens": 24,
        },
        "rollout": {"max_new_tokens": 8},
        "objective": objective,
        "trainer": {"engine": {"kind": "torch", "ranks": 1}, "optimizer": {"learning_rate": 3e-3}},
    }
    return RunSpec.model_validate(tree | parts)


class Trained:
    """An engine that learns iteration by iteration as a run would have it."""

    def __init__(self, spec: RunSpec, run_folder: Path) -> None:
        receipt = materialise(spec, run_folder)
        self.spec = spec
        self.model = Path(receipt.model_path)
        context = RankContext(run_folder, run_folder / receipt.folder, receipt.model_path, 0)
        self.engine: TrainEngine = build_train_engine(spec, context)
        self.engine.connect(0, 1, hold_address(LOOPBACK))
        self.engine.initialise()
        self.cursors = [Cursor.start(spec.data)]

    def learn(self, iterations: range) -> list[UpdateReceipt]:
        """Learns iterations, which begin after the last one or earlier."""
        return [self._learned(iteration) for iteration in iterations]

    def evaluate(self) -> dict[str, float]:
        """Returns the metrics on the held-out rows."""
        return dict(self.engine.evaluate(RowsTask(WorkKey("R", 0, self.engine.version, "evaluate"), 1)).metrics)

    def _learned(self, iteration: int) -> UpdateReceipt:
        count = self.spec.data.prompts_per_iteration
        rows, after = draw(self.spec.data, self.spec.seed, self.cursors[iteration - 1], count)
        self.cursors[iteration:] = [after]
        task = BatchTask(WorkKey("R", 0, iteration, "learn"), 1, (), rows=rows)
        prepared = self.engine.prepare(task)
        assert prepared is not None
        return self.engine.learn(task, prepared)
