"""What is found out about a chat template, and what is learnt of replies that it renders, without the peers' templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.families import Family, make_folder
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.codec import generation_stops
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.prompt_codec import CodecSettings, PromptCodec
from yatt_core.prompts.rows import encode_demonstration
from yatt_core.prompts.thoughts import Marks
from yatt_core.prompts.tool_calls import ToolCall, read_call, write_result
from yatt_core.spec.sections.tools import ToolsSpec

TURN = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = TURN + ASKS
THINKS = TURN + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
DROPS_THOUGHTS = THINKS.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
SWITCHED = TURN + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
ENDS_BY_NEXT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDLESS = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
FAMILY = Family(
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>"),
    "<|endoftext|>",
    ("<|endoftext|>", "<|user|>"),
    added=("<think>", "</think>", "<tool_call>", "</tool_call>"),
)


def codec(folder: Path, template: str, settings: CodecSettings | None = None, family: Family = FAMILY) -> PromptCodec:
    make_folder(folder, family, template)
    stops = generation_stops(folder, {})
    return PromptCodec(load_tokenizer(folder), settings or CodecSettings(), 4096, stops)


def learnt(codec: PromptCodec, *texts: str, **fields: object) -> tuple[str, str]:
    """Returns the prompt's text and the learnt text of a reply of one message or more, with users' turns between them."""
    prompt = Prompt(0, 0, "p", "Why?", None, {})
    roles = ("assistant", "user")
    reply = [Message(roles[number % 2], text, **fields) for number, text in enumerate(texts)]  # type: ignore[arg-type]
    asked = codec.encode_prompt(prompt)
    encoded = codec.encode_reply(prompt, reply)
    kept = asked[: len(asked) - encoded.missing]
    return codec.tokenizer.decode(kept), codec.tokenizer.decode(encoded.tokens[encoded.learnt])


def test_a_turn_is_learnt_from_where_generation_begins_to_the_token_that_ends_it(tmp_path: Path) -> None:
    assert learnt(codec(tmp_path, CHATML), "So.") == (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "So.<|im_end|>",
    )


INSTRUCTS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "missing"),
    [(CHATML, ""), (THINKS, ""), (TURN, "<|im_start|>assistant"), (INSTRUCTS, ""), ("{{ raise_exception('no') }}", "")],
)
def test_a_template_without_generation_prompt_lacks_what_stands_before_replies(
    tmp_path: Path, template: str, missing: str
) -> None:
    assert codec(tmp_path, template).missing_opening == missing


def test_the_token_that_ends_turns_ends_responses_too(tmp_path: Path) -> None:
    made = codec(tmp_path, CHATML)
    end = made.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert end in made.stop_tokens
    assert made.decode([*made.encode_answer("So.")[:-1], end]) == "So."


def test_the_mark_of_the_next_turn_ends_a_turn_if_the_template_writes_no_other(tmp_path: Path) -> None:
    assert learnt(codec(tmp_path, ENDS_BY_NEXT), "So.", "Really?", "Yes.")[1] == "So.<|user|>Yes.<|user|>"


def test_a_template_that_marks_no_end_is_ended_by_the_end_of_sequence(tmp_path: Path) -> None:
    assert learnt(codec(tmp_path, ENDLESS), "So.")[1] == "So.\n<|endoftext|>"


def test_thoughts_are_behind_a_prefilled_mark_once(tmp_path: Path) -> None:
    made = codec(tmp_path, THINKS)
    assert made.reading.prefill == "<think>\n"
    before, text = learnt(made, "<think>\nhm\n</think>\n\nSo.")
    assert before.endswith("assistant\n<think>\n") and text == "hm\n</think>\n\nSo.<|im_end|>"
    assert made.decode_turn(made.encode_answer("hm\n</think>\n\nSo.")) == "<think>\nhm\n</think>\n\nSo."


def test_a_reply_without_thoughts_is_not_learnt_within_thoughts(tmp_path: Path) -> None:
    before, text = learnt(codec(tmp_path, THINKS), "So.")
    assert before.endswith("assistant\n") and text == "So.<|im_end|>"


def test_thoughts_that_a_template_drops_are_learnt_all_the_same(tmp_path: Path) -> None:
    _, text = learnt(codec(tmp_path, DROPS_THOUGHTS), "<think>\nhm\n</think>\n\nSo.")
    assert text == "hm\n</think>\n\nSo.<|im_end|>"
    _, keyed = learnt(codec(tmp_path / "b", DROPS_THOUGHTS), "So.", thoughts="hm")
    assert keyed == text


@pytest.mark.parametrize("template", [CHATML, THINKS, DROPS_THOUGHTS])
@pytest.mark.parametrize(
    "text", ["It writes a <think> tag.", "It ends with </think>. Yes.", "<think>a</think> is one."]
)
def test_an_answer_that_names_the_marks_of_thoughts_is_learnt_whole(tmp_path: Path, template: str, text: str) -> None:
    _, found = learnt(codec(tmp_path, template), f"<think>\nhm\n</think>\n\n{text}")
    assert found.removeprefix("<think>\n") == f"hm\n</think>\n\n{text}<|im_end|>"


def test_what_stands_before_thoughts_is_learnt(tmp_path: Path) -> None:
    _, found = learnt(codec(tmp_path, DROPS_THOUGHTS), "Well. <think>hm</think>\nSo.")
    assert found == "hm\n</think>\n\nWell. So.<|im_end|>"


@pytest.mark.parametrize("turn", ["{{ m['role'] }}", "{{ m['content'].split('.')[0] }}"])
def test_a_template_that_drops_or_cuts_a_reply_is_refused(tmp_path: Path, turn: str) -> None:
    with pytest.raises(DataError, match=r"prompt p .*the text of an assistant's message"):
        learnt(codec(tmp_path, CHATML.replace("{{ m['content'] }}", turn)), "So. It is.")


def test_a_shown_call_continues_behind_what_the_template_writes_before_a_reply_without_thoughts(tmp_path: Path) -> None:
    make_folder(tmp_path, FAMILY, THINKS)
    made = PromptCodec(load_tokenizer(tmp_path), CodecSettings(), 4096, [0], tools=TOOLS)
    answer = f"<tool_call>x</tool_call>{write_result('12')}So."
    encoded = encode_demonstration(Prompt(0, 0, "p", "Why?", answer, {}), made, several_turns=True)
    assert made.tokenizer.decode(encoded.tokens).endswith("12<|im_end|>\n<|im_start|>assistant\nSo.<|im_end|>")
    assert made.tokenizer.decode(encoded.tokens[encoded.learnt]).endswith("So.<|im_end|>")


def test_variables_of_the_template_switch_thoughts_off(tmp_path: Path) -> None:
    made = codec(tmp_path, SWITCHED, CodecSettings(variables={"enable_thinking": False}))
    assert made.reading.prefill == "<think>\n\n</think>\n\n"
    assert codec(tmp_path / "b", SWITCHED).reading.prefill == ""


def test_marks_of_thoughts_may_be_given(tmp_path: Path) -> None:
    made = codec(tmp_path, CHATML, CodecSettings(thoughts=Marks("<r>", "</r>")))
    assert made.reading.marks == Marks("<r>", "</r>")


def test_messages_of_weight_0_are_context(tmp_path: Path) -> None:
    made = codec(tmp_path, CHATML)
    prompt = Prompt(0, 0, "p", "Why?", None, {})
    reply = [Message("assistant", "Um.", learnt=False), Message("user", "Well?"), Message("assistant", "So.")]
    encoded = made.encode_reply(prompt, reply)
    assert made.tokenizer.decode(encoded.tokens[encoded.learnt]) == "So.<|im_end|>"
    assert "Um." in made.tokenizer.decode(encoded.tokens)


def test_a_reply_that_does_not_end_with_the_assistant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prompt p .* does not begin and end with a message of the assistant"):
        codec(tmp_path, CHATML).encode_reply(Prompt(0, 0, "p", "Why?", None, {}), [Message("user", "So.")])


CALLS = {
    "json_in_tags": '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>',
    "function_tags": (
        "<tool_call><function={{ c.function.name }}>{% for k, v in c.function.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v }}\n</parameter>{% endfor %}</function></tool_call>"
    ),
    "marked_list": '[TOOL_CALLS][{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]',
    "bare_json": '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
    "fenced_json": (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n```json\n{{ c.function.arguments }}\n```"
        "<｜tool▁call▁end｜>"
    ),
}
TOOLS = ToolsSpec.model_validate(
    {"functions": [{"name": "calculator", "function": "calculator"}], "max_result_tokens": 400}
)


def calling(form: str) -> str:
    """Returns a template that writes calls in a form, and results as a tool's turns."""
    turn = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    calls = "{% for c in m['tool_calls'] or [] %}" + form + "{% endfor %}"
    return "{% for m in messages %}" + turn + calls + "<|im_end|>\n{% endfor %}" + ASKS


@pytest.mark.parametrize("syntax", CALLS)
def test_the_form_of_calls_is_found_out_by_the_template(tmp_path: Path, syntax: str) -> None:
    make_folder(tmp_path, FAMILY, calling(CALLS[syntax]))
    made = PromptCodec(load_tokenizer(tmp_path), CodecSettings(), 4096, [0], tools=TOOLS)
    assert made.reading.syntax == syntax
    prompt = Prompt(0, 0, "p", "Why?", None, {})
    call = Message("assistant", "", calls=(ToolCall("calculator", {"expression": "3 * 4"}),))
    reply = [call, Message("tool", "12", name="calculator"), Message("assistant", "It is 12.")]
    encoded = made.encode_reply(prompt, reply)
    text = made.tokenizer.decode(encoded.tokens[encoded.learnt])
    first, _, second = text.partition("<|im_end|>")
    assert read_call(first, made.reading) == ToolCall("calculator", {"expression": "3 * 4"})
    assert second == "It is 12.<|im_end|>"
    assert "<|im_start|>tool\n12<|im_end|>" in made.tokenizer.decode(encoded.tokens[~encoded.learnt])


def test_a_result_names_the_call_that_it_answers(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['tool_call_id'] }}\n{{ m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}[TOOL_CALLS]"
        "[{{ {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson }}]{% endfor %}<|im_end|>\n"
        "{% endfor %}" + ASKS
    )
    make_folder(tmp_path, FAMILY, template)
    made = PromptCodec(load_tokenizer(tmp_path), CodecSettings(), 4096, [0], tools=TOOLS)
    call = ToolCall("calculator", {"expression": "3 * 4"}, "abcDEF123")
    encoded = made.encode_reply(Prompt(0, 0, "p", "Why?", None, {}), [Message("assistant", "", calls=(call,))])
    assert read_call(made.decode(encoded.tokens), made.reading) == call
    tokens, _ = made.encode_result("12", call)
    assert "tool abcDEF123\n12" in made.tokenizer.decode(tokens)


def test_a_model_whose_calls_cannot_be_read_is_refused_with_tools(tmp_path: Path) -> None:
    make_folder(tmp_path, FAMILY, calling("CALL {{ c.function.name }} WITH {{ c.function.arguments }}"))
    with pytest.raises(
        ConfigurationError, match=r"rollout.tools: .* writes calls of tools in a form that YATT does not read"
    ):
        PromptCodec(load_tokenizer(tmp_path), CodecSettings(), 4096, [0], tools=TOOLS)


def test_a_reply_whose_calls_a_template_drops_is_refused(tmp_path: Path) -> None:
    call = Message("assistant", "", calls=(ToolCall("calculator", {"expression": "3 * 4"}),))
    reply = [call, Message("tool", "12"), Message("assistant", "It is 12.")]
    with pytest.raises(DataError, match=r"prompt p .*does not write the calls of tools"):
        codec(tmp_path, CHATML).encode_reply(Prompt(0, 0, "p", "Why?", None, {}), reply)


def test_tags_that_are_special_tokens_survive_decoding(tmp_path: Path) -> None:
    tags = ("<think>", "</think>", "<answer>", "</answer>", "<other>")
    family = Family((*FAMILY.special, *tags), FAMILY.eos, FAMILY.stops)
    made = codec(tmp_path, CHATML, CodecSettings(tags=("<answer>", "</answer>")), family)
    text = "<think>a</think><answer>4</answer>"
    assert made.decode(made.encode_answer(text)) == text
    assert made.decode(made.encode_answer("a<other>b<|im_start|>c")) == "abc"
