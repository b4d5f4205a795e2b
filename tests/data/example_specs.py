"""Small specs for the tests of prompts, inputs and rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from yatt_core.data.inputs import materialise
from yatt_core.spec import RunSpec

SPELL = {
    "kind": "reasoning_gym",
    "task": "spell_backward",
    "options": {"min_word_len": 3, "max_word_len": 4},
    "size": 2000,
}
SUM = {"kind": "reasoning_gym", "task": "chain_sum", "options": {"max_terms": 3}, "size": 500}
EXACT = [{"name": "exact", "function": "reasoning_gym", "options": {"exact": True}}]
VIRTUAL = {"rollout": {"engine": {"kind": "virtual"}}, "trainer": {"engine": {"kind": "virtual"}}}


def run_spec(*sources: dict[str, Any], data: dict[str, Any] | None = None, **rest: Any) -> RunSpec:
    """A spec over some sources."""
    tree = {
        "name": "test",
        "data": {"sources": list(sources), "held_out": 60, "probe": 40, **(data or {})},
        "rewards": {"parts": EXACT},
        "rollout": {"max_new_tokens": 6},
    }
    return RunSpec.model_validate({**tree, **rest})


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Writes rows and returns the source that reads them."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "path": str(path)}


def make_inputs(spec_json: str, folder: Path, acknowledge: Callable[[str], None]) -> None:
    """Makes a run's inputs, in a process that may be killed."""
    materialise(RunSpec.model_validate_json(spec_json), folder)
    acknowledge("made")
