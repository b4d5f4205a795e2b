"""Chat templates get the messages as they are, whatever transformers' own method makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from transformers import PreTrainedTokenizerFast

from tests.parity.families import Family, make_folder
from yatt_core.models.template_rendering import TEMPLATE_DATE, render_messages
from yatt_core.models.tokenizer import load_tokenizer

FAMILY = Family(("<|end|>", "<|turn|>"), "<|end|>", ("<|end|>",))
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "me & <you>"}}}
SILENT = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
ORDINARY = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}\n"
    "{% for m in messages %}\n"
    "  {%- if m.role == 'system' %}{% continue %}{% endif %}\n"
    "<|turn|>{{ m['role'] }}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}\n"
    "{% endfor %}{% set ns = namespace(n=1, self=2) %}{% set ns.n = ns.n + ns.self %}{{ ns.n }}"
    "{% if add_generation_prompt %}<|turn|>assistant{% endif %}{{ style }}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = tmp_path_factory.mktemp("model")
    make_folder(folder, FAMILY, ORDINARY)
    return load_tokenizer(folder)


def rendered(tokenizer: Any, template: Any, *messages: dict[str, Any], **more: Any) -> str:
    tokenizer.chat_template = template
    return render_messages(tokenizer, messages, **more)


def test_null_is_shown_to_templates_that_ask_for_it(tokenizer: Any) -> None:
    """As Mistral's and Llama's write calls; transformers 5.24 drops the key, and `content is none` does not hold."""
    template = "{% for m in messages %}{% if m.content is none %}CALLS {{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}"
    assert rendered(tokenizer, template, SILENT) == "CALLS look"


def test_thoughts_are_shown_by_the_keys_that_a_message_has(tokenizer: Any) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }}{% endfor %}"
    assert rendered(tokenizer, template, {"role": "assistant", "content": "So.", "reasoning": "Hm."}) == "||Hm."


def test_templates_that_ask_for_the_date_get_the_same_one_every_day(tokenizer: Any) -> None:
    """Functions among the variables are texts for transformers 5.24, which cannot be called."""
    assert rendered(tokenizer, "{{ strftime_now('%d %b %Y') }} {{ date_string }}") == f"{TEMPLATE_DATE} {TEMPLATE_DATE}"
    assert rendered(tokenizer, "{{ date_string }}", variables={"date_string": "1 May"}) == "1 May"


def test_json_is_not_escaped_and_may_be_formatted(tokenizer: Any) -> None:
    template = (
        "{{ messages[0].tool_calls[0].function.arguments | tojson }} {{ {'b': 'é', 'a': 1} | tojson(sort_keys=true) }}"
    )
    assert rendered(tokenizer, template, SILENT) == '{"at": "me & <you>"} {"a": 1, "b": "é"}'


@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("generates", [False, True])
def test_an_ordinary_conversation_is_rendered_as_by_transformers(
    tokenizer: Any, tools: list[Any] | None, generates: bool
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Why? \n"},
        {"role": "assistant", "content": "So."},
    ]
    tokenizer.chat_template = ORDINARY
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=generates, style="!"
    )
    found = render_messages(tokenizer, messages, tools, generates, {"style": "!"})
    assert found == expected and "So.<|end|>" in found and "brief" not in found


def test_a_model_may_have_a_template_for_tools(tokenizer: Any) -> None:
    both = {"default": "plain", "tool_use": "{{ tools | length }}"}
    assert [rendered(tokenizer, both), rendered(tokenizer, both, tools=[TOOL])] == ["plain", "1"]


@pytest.mark.parametrize(
    ("template", "error", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", TemplateError, "roles must alternate"),
        ("{% if %}", TemplateError, "Expected an expression"),
        ("{{ messages.append(1) }}", SecurityError, "append"),
        ("{{ ''.__class__.__mro__ }}", SecurityError, "__class__"),
        ("{{ strftime_now.__globals__.keys() }}", SecurityError, "__globals__"),
        ("{% set ns = namespace() %}{% set ns.__html__ = 1 %}", SecurityError, "__html__"),
        ("{{ namespace(__html__=1) }}", SecurityError, "__html__"),
        (None, ValueError, "chat_template"),
    ],
)
def test_what_a_template_must_not_do_is_an_error(
    tokenizer: Any, template: str | None, error: type[Exception], says: str
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(error, match=says):
        render_messages(tokenizer, [{"role": "user", "content": "?"}])
