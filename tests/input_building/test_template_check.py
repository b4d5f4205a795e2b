"""A chat template has to show the questions: one that leaves them out, cuts them or makes them alike is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import run_spec
from tests.models.folders import CHATML, make_folder
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.template_check import check_template
from yatt_core.spec import RunSpec

CONTENT = "m['content']"
ONLY_PARTS = (
    "{% for m in messages %}{% for c in m['content'] if c['type'] == 'words' %}{{ c['words'] }}{% endfor %}{% endfor %}"
)
CONSTANT = "{% for m in messages %}Hello{% endfor %}"
ONLY_FIRST = CHATML.replace("for m in messages", "for m in messages[:1]")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a zebra?"}]


def spec_of(folder: Path, template: str, rows: list[dict[str, Any]], **source: Any) -> RunSpec:
    make_folder(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(template)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_spec(
        {"kind": "jsonl", "path": str(folder / "rows.jsonl"), **source},
        model={"kind": "folder", "path": str(folder / "model")},
    )


ROWS = [{"prompt": f"How many apples has the {row}th child in the class?"} for row in range(10)]


@pytest.mark.parametrize(
    ("template", "rows", "says"),
    [
        (CONSTANT, ROWS, r"leaves out the question .* 10 of the first 10 prompts: 'How many"),
        (ONLY_PARTS, ROWS, "leaves out the question"),
        (CHATML.replace(CONTENT, f"{CONTENT} | truncate(20)"), ROWS, "leaves out the question or a part of it"),
        (ONLY_FIRST, [{"prompt": CHAT}], "leaves out .* in 1 of the first 1 prompts: 'What is a z"),
        (CONSTANT, [{"prompt": "Hello"}, {"prompt": "Hell"}], r"renders different prompts alike: .*jsonl:1 and 0/.*jsonl:2"),
    ],
)  # fmt: skip
def test_a_template_that_hides_questions_is_refused(
    tmp_path: Path, template: str, rows: list[dict[str, Any]], says: str
) -> None:
    spec = spec_of(tmp_path, template, rows)
    with pytest.raises(
        ConfigurationError, match=rf"model\.path: .*model: its chat template {says}.*; correct it \(chat_"
    ):
        check_template(spec)


@pytest.mark.parametrize(
    ("template", "rows", "source"),
    [
        (CHATML, ROWS, {}),
        (CHATML, [*ROWS, *ROWS, {"prompt": "  spaces \n\n at  its ends "}, {"prompt": "<|im_end|> is a token"}], {}),
        (CHATML.replace(CONTENT, f"{CONTENT} | trim"), [{"prompt": " a\n"}, {"prompt": CHAT}], {}),
        (CONSTANT, ROWS, {"rendered": True}),
    ],
)
def test_a_template_that_shows_them_passes(
    tmp_path: Path, template: str, rows: list[dict[str, Any]], source: dict[str, Any]
) -> None:
    check_template(spec_of(tmp_path, template, rows, **source))
