"""Small specs for the tests of prompts, inputs and rewards."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from yatt_core.input_building.materialise import materialise
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
    """Builds a spec over some sources."""
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


def png(*colour: int, size: tuple[int, int] = (4, 4)) -> bytes:
    """Returns a PNG file of one colour: red, green, blue."""
    stream = io.BytesIO()
    Image.new("RGB", size, tuple(colour)).save(stream, "PNG")
    return stream.getvalue()


def write_image_source(folder: Path, count: int, first: int = 0) -> dict[str, Any]:
    """Writes rows of one question, each with its own PNG file, and returns the source that reads them."""
    folder.mkdir(parents=True)
    rows = []
    for i in range(first, first + count):
        (folder / f"{i}.png").write_bytes(png(i % 256, i // 256, 7))
        rows.append({"prompt": "Which colour is it?", "answer": str(i), "image": f"{i}.png"})
    return {**write_jsonl(folder / "rows.jsonl", rows), "image_field": "image"}


def make_inputs(spec_json: str, folder: Path, acknowledge: Callable[[str], None]) -> None:
    """Builds a run's inputs in a process that may be killed."""
    materialise(RunSpec.model_validate_json(spec_json), folder)
    acknowledge("made")
