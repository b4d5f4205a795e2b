"""A task whose right answers the tokenizer cannot express is refused while the inputs are built."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.input_building.test_fitting import TINY
from tests.inputs.example_specs import run_spec, write_jsonl
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise

FEW = {"held_out": 4, "probe": 4}
EXACT = {"parts": [{"name": "exact", "function": "exact_match"}]}


def spec_of(folder: Path, answers: list[str], **model: Any) -> Any:
    rows = [{"prompt": f"q{number}", "answer": answer} for number, answer in enumerate(answers)]
    source = write_jsonl(folder / "rows.jsonl", rows)
    return run_spec(source, data=FEW, rewards=EXACT, model={"kind": "from_config", **TINY, **model})


def test_a_tokenizer_that_loses_every_answer_is_refused_with_rows_and_remedy(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ["ABC"] * 40)
    with pytest.raises(
        DataError, match=r"data\.sources\.0 .*32 of 32 .*rows\.jsonl:\d+: 'ABC' becomes 'abc'.*lowercase: false"
    ):
        materialise(spec, tmp_path / "r")
    assert not list((tmp_path / "r").iterdir())


def test_the_remedy_helps(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ["ABC"] * 40, tokenizer={"lowercase": False})
    assert materialise(spec, tmp_path / "r").train_prompts == 32


def test_a_few_lost_answers_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = spec_of(tmp_path, ["ABC", "abc", "abc", "abc"] * 10)
    with caplog.at_level(logging.WARNING):
        materialise(spec, tmp_path / "r")
    assert re.search(r" [1-9] of 32 reference answers .* 'ABC' becomes 'abc'", caplog.text)


def test_a_source_whose_own_answers_are_never_right_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = {"kind": "reasoning_gym", "task": "rush_hour", "size": 20}
    gym = {"parts": [{"name": "score", "function": "reasoning_gym"}]}
    model = {"kind": "from_config", **TINY, "max_positions": 4096}
    spec = run_spec(source, data={**FEW, "max_prompt_tokens": 3000}, rewards=gym, model=model)
    with caplog.at_level(logging.WARNING):
        materialise(spec, tmp_path / "r")
    assert "data.sources.0 (rush_hour): no reference answer" in caplog.text


@pytest.mark.parametrize("task", ["caesar_cipher", "tower_of_hanoi", "syllogism"])
def test_generated_tasks_are_checked_too(tmp_path: Path, task: str) -> None:
    source = {"kind": "reasoning_gym", "task": task, "size": 40}
    gym = {"parts": [{"name": "score", "function": "reasoning_gym"}]}
    model = {"kind": "from_config", **TINY, "max_positions": 4096}
    spec = run_spec(source, data={**FEW, "max_prompt_tokens": 3000}, rewards=gym, model=model)
    with pytest.raises(DataError, match=rf"data\.sources\.0 \({task}\): .* reference answers"):
        materialise(spec, tmp_path / "r")


@pytest.mark.parametrize(
    "options",
    [
        {"extract": "boxed"},
        {"extract": "tag"},
        {"extract": "pattern", "pattern": r"(?s).*####\s*(?P<answer>\w+)"},
        {"extract": "pattern", "pattern": r"(?s).*Answer:\s*(?P<answer>\w+)"},
    ],
)
def test_answers_that_are_right_in_the_form_that_prompts_ask_for_are_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    rows = [{"prompt": f"q{number}", "answer": "abc"} for number in range(40)]
    rewards = {"parts": [{"name": "exact", "function": "exact_match", "options": options}]}
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    spec = run_spec(source, data=FEW, rewards=rewards, model={"kind": "from_config", **TINY})
    with caplog.at_level(logging.WARNING):
        materialise(spec, tmp_path / "r")
    assert "no reference answer" not in caplog.text
