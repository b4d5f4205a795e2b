"""Reads what `yatt init` writes, as a run reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ops.conftest import Yatt
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.functions import load_part
from yatt_core.spec import RunSpec, load_spec


def written(yatt: Yatt, tmp_path: Path, data: Path, model: Path, *more: str) -> tuple[RunSpec, str, dict[str, Any]]:
    """Returns the spec that `yatt init` writes, its text, and what the command says."""
    words = (
        "init",
        str(tmp_path / "run"),
        "--name",
        "sample",
        "--data",
        str(data),
        "--model",
        str(model),
        "-o",
        "json",
    )
    answer = yatt(*words, *more)
    assert answer.code == 0, answer.err
    path = tmp_path / "run" / "sample.yaml"
    return load_spec(path), path.read_text(), answer.document


def score(spec: RunSpec, prompt: Prompt, response: str) -> float:
    (part,) = spec.rewards.functions
    function = load_part(part)
    completion = Completion.of_turns(response, [response], 1)
    ((outcome,),) = function.evaluate([[function.candidate(prompt, completion)]])
    return outcome.value
