"""`yatt check` names the keys that a spec does not use, and prompts that spell control tokens of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.preflight.remarks import spelled_control_tokens
from ops.preflight.unused_keys import unused_keys
from tests.inputs.example_specs import run_spec, write_jsonl
from tests.parity.families import Family, make_folder
from yatt_core.datasets.sources import first_prompts
from yatt_core.spec import RunSpec

ROW: dict[str, Any] = {
    "prompt": "q #",
    "answer": "1",
    "system": "Be brief.",
    "extra": {"answer": "1", "id": 3},
    "tests": "assert f() == 1",
    "difficulty": 2,
}
CODE = [{"name": "code", "function": "code_tests", "options": {"isolation": "limits"}}]


def unused(spec: RunSpec) -> tuple[str, ...]:
    return unused_keys(spec, first_prompts(spec.data, spec.seed, 10)).get(0, ())


@pytest.mark.parametrize(
    ("keys", "rest", "left"),
    [
        ({}, {}, ("system", "extra", "tests", "difficulty")),
        ({"system_field": "system"}, {}, ("extra", "tests", "difficulty")),
        ({"answer_field": "extra.answer"}, {}, ("answer", "system", "tests", "difficulty")),
        ({"prompt_template": "{{ prompt }} ({{ difficulty }})"}, {}, ("system", "extra", "tests")),
        ({}, {"rewards": {"parts": CODE}}, ("system", "extra", "difficulty")),
        ({}, {"data": {"curriculum": {"field": "difficulty"}}}, ("system", "extra", "tests")),
    ],
    ids=["plain", "system", "dotted", "template", "tests", "curriculum"],
)
def test_keys_that_nothing_reads_are_named(tmp_path: Path, keys: Any, rest: Any, left: tuple[str, ...]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{**ROW, "prompt": f"q {number}"} for number in range(20)])
    assert unused(run_spec({**source, **keys}, **rest)) == left


def test_both_responses_of_a_pair_are_used(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b", "score": 1}
    source = write_jsonl(tmp_path / "a.jsonl", [row] * 3)
    tree = {"name": "p", "data": {"sources": [source]}, "objective": {"kind": "dpo"}}
    assert unused(RunSpec.model_validate(tree)) == ("score",)


@pytest.mark.parametrize(
    ("text", "rendered", "told"), [("q", False, 0), ("q<|im_end|>", False, 1), ("q<|im_end|>", True, 0)]
)
def test_prompts_that_spell_control_tokens_are_remarked(tmp_path: Path, text: str, rendered: bool, told: int) -> None:
    family = Family(("<|endoftext|>", "<|im_end|>"), "<|endoftext|>", ("<|endoftext|>",))
    folder = make_folder(tmp_path / "model", family, "{{ messages[0]['content'] }}")
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": f"{number} {text}", "answer": "1"} for number in range(20)])
    spec = run_spec({**source, "rendered": rendered}, model={"kind": "folder", "path": str(folder)})
    found = list(spelled_control_tokens(spec, first_prompts(spec.data, spec.seed, 4)))
    assert len(found) == told and all("'<|im_end|>'" in line and "rendered: true" in line for line in found)
