"""A chat template has to show the questions: one that leaves them out, cuts them or makes them alike is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import run_spec
from tests.models.folders import CHATML, make_folder
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.template_check import check_template, unread_calls
from yatt_core.spec import RunSpec

CONTENT = "m['content']"
ONLY_PARTS = (
    "{% for m in messages %}{% for c in m['content'] if c['type'] == 'words' %}{{ c['words'] }}{% endfor %}{% endfor %}"
)
CONSTANT = "{% for m in messages %}Hello{% endfor %}"
ONLY_FIRST = CHATML.replace("for m in messages", "for m in messages[:1]")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a zebra?"}]


def spec_of(
    folder: Path, template: str, rows: list[dict[str, Any]], rest: dict[str, Any] | None = None, **source: Any
) -> RunSpec:
    make_folder(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(template)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_spec(
        {"kind": "jsonl", "path": str(folder / "rows.jsonl"), **source},
        model={"kind": "folder", "path": str(folder / "model")},
        **(rest or {}),
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


SHOWS_TOOLS = "{% for t in tools or [] %}{{ t.function.name }} {{ t.function.description }}\n{% endfor %}" + CHATML
TELLS_THE_FORM = SHOWS_TOOLS.replace("{% for m", "{% if tools %}Write <tool_call>{}</tool_call>.{% endif %}{% for m", 1)
ARGUMENTS = "{% for c in m.tool_calls or [] %}CALL {{ c.function.arguments | tojson }}{% endfor %}"
WRITES_ARGUMENTS = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}" + ARGUMENTS)


def with_tools(description: str, **rest: Any) -> dict[str, Any]:
    tool = {"name": "calculator", "function": "calculator", "description": description}
    return {"rollout": {"max_new_tokens": 6, "tools": {"functions": [tool]}}, **rest}


@pytest.mark.parametrize(
    ("template", "description", "says"),
    [
        (WRITES_ARGUMENTS, "", "writes calls of tools in a form that YATT does not read; use another model"),
        (SHOWS_TOOLS, "adds", "shows the tools, but writes no calls, .*; use a chat template .*data.system_prompt"),
    ],
)
def test_a_template_whose_calls_cannot_be_read_is_named(
    tmp_path: Path, template: str, description: str, says: str
) -> None:
    (line,) = unread_calls(spec_of(tmp_path, template, ROWS, with_tools(description)))
    assert re.fullmatch(rf"rollout\.tools: the model's chat template {says}.* \(model\.path: {tmp_path}/model\)", line)


@pytest.mark.parametrize(
    ("template", "description", "rest"),
    [
        (CHATML, "", {}),
        (SHOWS_TOOLS, "", {}),
        (TELLS_THE_FORM, "adds", {}),
        (SHOWS_TOOLS, "adds", {"data": {"system_prompt": "Write <tool_call>{}</tool_call> to calculate."}}),
    ],
)
def test_a_template_that_leaves_the_form_of_calls_to_the_prompts_passes(
    tmp_path: Path, template: str, description: str, rest: dict[str, Any]
) -> None:
    assert not list(unread_calls(spec_of(tmp_path, template, ROWS, with_tools(description, **rest))))


def test_prompts_and_demonstrated_answers_may_tell_the_form_of_calls(tmp_path: Path) -> None:
    told = [{**row, "prompt": f"{row['prompt']} Write <tool_call>."} for row in ROWS]
    assert not list(unread_calls(spec_of(tmp_path / "told", SHOWS_TOOLS, told, with_tools("adds"))))
    shown = [{**row, "answer": "<tool_call>{}</tool_call>"} for row in ROWS]
    assert not list(unread_calls(spec_of(tmp_path / "shown", SHOWS_TOOLS, shown, with_tools("adds", sft={}))))
    assert list(unread_calls(spec_of(tmp_path / "unlearnt", SHOWS_TOOLS, shown, with_tools("adds"))))
