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
MATCH = {"name": "match", "function": "exact_match"}


def unused(spec: RunSpec) -> tuple[str, ...]:
    return unused_keys(spec, first_prompts(spec.data, spec.seed, 10)).get(0, ())


@pytest.mark.parametrize(
    ("keys", "rest", "left"),
    [
        ({}, {}, ("system", "extra", "tests", "difficulty")),
        ({"system_field": "system"}, {}, ("extra", "tests", "difficulty")),
        ({"answer_field": "extra.answer"}, {}, ("answer", "system", "tests", "difficulty")),
        ({"prompt_template": "{{ prompt }} ({{ difficulty }})"}, {}, ("system", "extra", "tests")),
        ({}, {"rewards": {"parts": CODE}}, ("answer", "system", "extra", "difficulty")),
        ({}, {"rewards": {"parts": [*CODE, MATCH]}}, ("system", "extra", "difficulty")),
        (
            {"prompt_template": "{{ prompt }} {{ answer }}"},
            {"rewards": {"parts": CODE}},
            ("system", "extra", "difficulty"),
        ),
        ({}, {"data": {"curriculum": {"field": "difficulty"}}}, ("system", "extra", "tests")),
    ],
    ids=["plain", "system", "dotted", "template", "tests", "tests and answers", "answer in the prompt", "curriculum"],
)
def test_keys_that_nothing_reads_are_named(tmp_path: Path, keys: Any, rest: Any, left: tuple[str, ...]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{**ROW, "prompt": f"q {number}"} for number in range(20)])
    assert unused(run_spec({**source, **keys}, **rest)) == left


TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
RESPONSES = {"chosen": "q a", "rejected": "q b", "answer": "1", "score": 1}


@pytest.mark.parametrize(
    ("kind", "keys", "row", "left"),
    [
        ("dpo", {}, {"prompt": "q", **RESPONSES}, ("answer", "score")),
        ("dpo", {"prompt_field": None}, RESPONSES, ("answer", "score")),
        ("sft", {}, {"prompt": "q", "answer": "a", "score": 1}, ("score",)),
        ("sft", {}, {"prompt": TALK, "answer": "a"}, ("answer",)),
        ("sft", {}, {"prompt": TALK[:1], "answer": TALK[1:]}, ()),
        ("sft", {"prompt_field": None}, {"answer": "a"}, ()),
        ("kto", {}, {"prompt": TALK, "label": True, "answer": "a"}, ("answer",)),
        ("kto", {}, {"prompt": "q", "label": True, "answer": "a"}, ()),
    ],
)
def test_responses_are_used_where_they_are_learnt(
    tmp_path: Path, kind: str, keys: dict[str, Any], row: dict[str, Any], left: tuple[str, ...]
) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [row] * 3)
    tree = {"name": "p", "data": {"sources": [{**source, **keys}]}, "objective": {"kind": kind}}
    assert unused(RunSpec.model_validate(tree)) == left


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
