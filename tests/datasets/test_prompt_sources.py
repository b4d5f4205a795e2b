"""What a row asks and demonstrates: dotted keys, templates, system messages, tools, dialogues, common beginnings, answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.reading import SOURCE, read_json, read_values
from tests.datasets.test_source_files import SMALL, train, write_parquet
from tests.inputs.example_specs import run_spec, write_jsonl
from yatt_core.datasets.sources import collect_prompts, first_answerless, task_key
from yatt_core.errors import DataError
from yatt_core.prompts.prompt import Message
from yatt_core.spec import spec_of_tree

USER = "user"
ASSISTANT = "assistant"
SYSTEM = "system"


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("pack", [dict, json.dumps])
def test_dots_lead_into_objects_and_their_json_texts(tmp_path: Path, pack: Any) -> None:
    rows = [
        {
            "extra": pack({"question": f"q{number}", "deep": {"system": "Be brief."}}),
            "reward_model": pack({"ground_truth": number}),
        }
        for number in range(3)
    ]
    keys = {
        "prompt_field": "extra.question",
        "answer_field": "reward_model.ground_truth",
        "system_field": "extra.deep.system",
    }
    for found in (
        read_values(tmp_path / "a.jsonl", *rows, **keys),
        read_values(tmp_path / "b.jsonl", *rows, **keys),
    ):
        assert [(row.messages[1].content, row.answer, row.messages[0].content) for row in found] == [
            (f"q{number}", str(number), "Be brief.") for number in range(3)
        ]


def test_a_name_with_dots_takes_precedence_over_a_path(tmp_path: Path) -> None:
    row = {"a.b": "name", "a": {"b": "path", "c.d": "inner name", "c": {"d": "inner path"}}}
    for key, text in (("a.b", "name"), ("a.c.d", "inner name")):
        assert read_values(tmp_path / "a.jsonl", row, prompt_field=key)[0].text == text
    with pytest.raises(DataError, match=r"no key 'a\.e' for the prompt"):
        read_values(tmp_path / "a.jsonl", row, prompt_field="a.e")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("ground_truth", "reward_model.ground_truth"),
        ("reward_model.groundtruth", "reward_model.ground_truth"),
        ("promt", "prompt"),
    ],
)
def test_hints_name_nested_keys(tmp_path: Path, key: str, near: str) -> None:
    row = {"prompt": "a", "reward_model": {"ground_truth": "1", "style": "rule"}}
    for options in ({"answer_field": key}, {"prompt_field": key}):
        with pytest.raises(DataError, match=rf"key '{key}' .*did you mean '{near}'"):
            read_values(tmp_path / "a.jsonl", row, **options)


@pytest.mark.parametrize("field", ["system_field", "tools_field", "answer_field"])
def test_a_key_that_is_set_occurs_in_some_rows(tmp_path: Path, field: str) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "system": "s"}]
    with pytest.raises(
        DataError, match=rf"none of the 2 train rows has the key 'systems' .*{field}\); did you mean 'system'"
    ):
        read_values(tmp_path / "a.jsonl", *rows, **{field: "systems"})


def test_images_below_a_key_are_kept_and_their_bytes_leave_the_row(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "more": {"image": {"bytes": b"12345", "path": None}, "level": 3}}]
    source = {**write_parquet(tmp_path / "a.parquet", rows), "image_field": "more.image"}
    from tests.datasets.reading import read

    (row,) = read(source)
    assert row.media == ("5 bytes",) and row.entry == {"prompt": "a", "more": {"level": 3}}


@pytest.mark.parametrize(
    ("value", "answer", "others"),
    [
        ("18", "18", ()), ("18 ", "18 ", ()), (18, "18", ()), (-3, "-3", ()), (18.0, "18.0", ()), (True, "true", ()),
        (False, "false", ()), (2**70, str(2**70), ()), (["a"], "a", ()), (["a", "b", "a"], "a", ("b",)),
        ([4, 4.5, True], "4", ("4.5", "true")), ([], None, ()), (None, None, ()), ("", "", ()),
    ],
)  # fmt: skip
def test_answers_are_texts_as_they_are_written(tmp_path: Path, value: Any, answer: str | None, others: Any) -> None:
    (row,) = read_values(tmp_path / "a.jsonl", {"prompt": "q", "answer": value})
    assert (row.answer, row.other_answers) == (answer, others)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"b": 1, "a": 2}, "'answer' is an object; .*answer.b, answer.a"),
        ([[1]], "a list in a list"),
        ([None], "NoneType"),
        ([{"answer": "a", "rank": 1}], "a list of objects, but not of messages"),
        ({}, "none"),
    ],
)
def test_answers_of_other_types_are_refused(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl:1: .*{says}"):
        read_values(tmp_path / "a.jsonl", {"prompt": "q", "answer": value})


def test_other_answers_reach_the_prompts(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{number}", "answer": [number, f"{number}.0"]} for number in range(9)]
    assert train(write_jsonl(tmp_path / "a.jsonl", rows))[0].other_answers == ("1.0",)


ALPACA = "{{ instruction }}{% if input %}\n\n{{ input }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        (ALPACA, {"instruction": "Do.", "input": "x"}, "Do.\n\nx"),
        (ALPACA, {"instruction": "Do.", "input": ""}, "Do."),
        (ALPACA, {"instruction": "Do.", "input": None}, "Do."),
        ("{{ q.text }} {{ meta.n }}", {"q": {"text": "a"}, "meta": '{"n": 3}'}, "a 3"),
        ("{{ meta['n'] + 1 }}{{ q['text'] }}", {"q": {"text": "a"}, "meta": '{"n": 3}'}, "4a"),
        ("{{ q.items }}{{ q.get }}", {"q": {"items": 1, "get": 2}}, "12"),
        ("{{ row['Problem Statement'] }}", {"Problem Statement": "<b> & {{ x }}"}, "<b> & {{ x }}"),
        (
            "{% for c in choices %}{{ 'ABC'[loop.index0] }}. {{ c }}\n{% endfor %}",
            {"choices": ["x", "y"]},
            "A. x\nB. y\n",
        ),
        ("{{ a | default('none') }}{{ b }}", {"b": "!"}, "none!"),
        ("{{ n * 2 }}", {"n": 4}, "8"),
    ],
)
def test_a_template_makes_the_prompt(tmp_path: Path, template: str, row: Any, text: str) -> None:
    (found,) = read_values(tmp_path / "a.jsonl", row, prompt_template=template)
    assert (found.text, found.messages) == (text, ())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ instruction }} {{ inptu }}", "'inptu' is undefined; the row's keys: instruction, input, long"),
        ("{% if missing %}x{% endif %}{{ input }}", "'missing' is undefined"),
        ("{{ input.none.deeper }}", "has no attribute 'none'"),
        ("{{ 'a' * 1000000000 }}{{ input }}", "numbers only"),
        ("{{ 9 ** 999999 }}{{ input }}", "no powers"),
        ("{{ input.ljust(1000000000) }}", "unsafe"),
        ("{{ '%9999999d' % 3 }}{{ input }}", "numbers only"),
        ("{{ input.__class__.__mro__ }}", "unsafe|undefined"),
        (
            "{% for i in range(99999) %}{{ long }}{% endfor %}",
            "more than 16,777,216 characters",
        ),
        ("{% for i in range(999999999) %}{{ input }}{% endfor %}", "Range too big"),
        ("{% if input == 'zz' %}x{% endif %}", "must be a non-empty string"),
        ("{{ input + 1 }}", "cannot be rendered"),
    ],
)
def test_what_a_template_cannot_make_names_the_row(tmp_path: Path, template: str, says: str) -> None:
    with pytest.raises(DataError, match=rf"(?s)a\.jsonl:1: '?prompt_template.*({says})"):
        read_values(
            tmp_path / "a.jsonl", {"instruction": "Do.", "input": "x", "long": "x" * 999}, prompt_template=template
        )


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ a ", "line 1: unexpected"),
        ("{{ a | shout }}", "No filter named 'shout'"),
        ("{{ a | random }}", "No filter named 'random'"),
        ("{{ 'a' | center(1000000000) }}", "No filter named 'center'"),
        ("{% include 'other' %}", "uses no key of the row"),
        ("no key", "uses no key of the row"),
    ],
)
def test_templates_are_compiled_when_the_spec_is_read(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)prompt_template: .*{says}"):
        SOURCE.validate_python({"kind": "jsonl", "path": "a", "prompt_template": template})


def test_a_template_reads_columns_of_tables(tmp_path: Path) -> None:
    rows = [{"q": f"q{number}", "choices": {"text": ["x", None]}, "answer": 1} for number in range(9)]
    source = {
        **write_parquet(tmp_path / "a.parquet", rows),
        "prompt_template": "{{ q }}{% for t in choices.text %}, {{ t }}{% endfor %}",
    }
    assert train(source)[0].text == "q1, x, None"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prompt_template": "{{ a }}", "prompt_field": "a"}, "prompt_template: it takes the place of prompt_field"),
        ({"prompt_template": "{{ a }}", "prompt_field": None}, "prompt_template: it takes the place of prompt_field"),
        ({"rendered": True, "dialogue": {}}, "dialogue: the texts of the source are rendered"),
        ({"rendered": True, "system_field": "s"}, "system_field: the texts of the source are rendered"),
        ({"rendered": True, "tools_field": "t"}, "tools_field: the texts of the source are rendered"),
        ({"dialogue": {"user": "A:", "assistant": "A: "}}, "cannot be told apart"),
        ({"system_field": "prompt"}, "system_field: 'prompt' is also the key of the prompt"),
        ({"tools_field": "answer"}, "tools_field: 'answer' is also the key"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SOURCE.validate_python({"kind": "jsonl", "path": "a", **given})


def test_no_system_message_is_added_to_rendered_texts() -> None:
    source = {"kind": "jsonl", "path": "a", "rendered": True}
    with pytest.raises(ValueError, match=r"system_prompt: the texts of sources\.0 are rendered"):
        run_spec(source, data={"system_prompt": "s"})
    assert run_spec(source).data.system_prompt is None


def test_a_spec_that_names_all_defaults_is_the_same_spec(tmp_path: Path) -> None:
    spec = run_spec({"kind": "jsonl", "path": str(tmp_path / "a"), "prompt_template": "{{ a }}"})
    assert spec_of_tree(spec.model_dump(mode="json"), "spec", tmp_path).digest == spec.digest


def test_a_system_message_of_the_row_comes_first(tmp_path: Path) -> None:
    chat = [said(SYSTEM, "Own."), said(USER, "q")]
    rows = [
        {"prompt": "q", "system": "Be brief."},
        {"prompt": "q", "system": " "},
        {"prompt": "q"},
        {"prompt": [said(USER, "a"), said(ASSISTANT, "b"), said(USER, "c")], "system": "Be kind."},
        {"prompt": chat, "system": None},
        {"prompt": chat, "system": "Own."},
    ]
    found = read_values(tmp_path / "a.jsonl", *rows, system_field="system")
    assert [row.text.split("\n")[0] for row in found] == [
        "system: Be brief.", "q", "q", "system: Be kind.", "system: Own.", "system: Own.",
    ]  # fmt: skip
    assert found[0].messages == (Message(SYSTEM, "Be brief."), Message(USER, "q")) and found[1].messages == ()
    assert [len(row.messages) for row in found[3:]] == [4, 2, 2]
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: 'prompt': .*system message of its own, which differs from 'system'"
    ):
        read_values(tmp_path / "a.jsonl", {"prompt": chat, "system": "Other."}, system_field="system")
    with pytest.raises(DataError, match=r"'system' is int; expected"):
        read_values(tmp_path / "a.jsonl", {"prompt": "q", "system": 3}, system_field="system")


TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("value", "tools"),
    [
        ([TOOL], (TOOL,)),
        (json.dumps([TOOL]), (TOOL,)),
        ([{"name": "add"}], ({"name": "add"},)),
        ([], ()),
        (None, ()),
        ("", ()),
        ("[]", ()),
    ],
)
def test_tools_of_a_row(tmp_path: Path, value: Any, tools: Any) -> None:
    (row,) = read_values(tmp_path / "a.jsonl", {"prompt": "q", "tools": value}, tools_field="tools")
    assert row.tools == tools


@pytest.mark.parametrize("value", ["add", {"name": "add"}, [3], [{"description": "x"}], ["add"], 3, '[{"name": '])
def test_what_describes_no_tools_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:1: 'tools'.* must be"):
        read_values(tmp_path / "a.jsonl", {"prompt": "q", "tools": value}, tools_field="tools")


CHAT = [said(SYSTEM, "s"), said(USER, "q"), said(ASSISTANT, "a", weight=0), said(USER, "more"), said(ASSISTANT, "b")]


def test_a_conversation_that_ends_with_the_assistants_message_is_a_demonstration(tmp_path: Path) -> None:
    found = read_values(
        tmp_path / "a.jsonl", {"messages": CHAT}, {"messages": CHAT, "answer": 4}, prompt_field="messages"
    )
    assert [message.role for message in found[0].messages] == [SYSTEM, USER]
    assert found[0].text == "system: s\n\nuser: q"
    assert [(message.role, message.content, message.learnt) for message in found[0].reply] == [
        (ASSISTANT, "a", False), (USER, "more", True), (ASSISTANT, "b", True),
    ]  # fmt: skip
    assert [row.answer for row in found] == ["b", "4"]
    prompts = train({**write_jsonl(tmp_path / "b.jsonl", [
        {"prompt": [said(USER, f"q{number}"), said(ASSISTANT, "a")], "tools": [TOOL]} for number in range(9)
    ]), "tools_field": "tools"})  # fmt: skip
    assert (prompts[0].text, prompts[0].messages, prompts[0].answer) == ("q1", (), "a")
    assert prompts[0].reply == (Message(ASSISTANT, "a"),) and prompts[0].tools == (TOOL,)


def test_messages_under_the_answers_key_are_a_demonstration(tmp_path: Path) -> None:
    prompt = [said(USER, "q")]
    completion = [said(ASSISTANT, "a")]
    rows = [
        {"prompt": prompt, "answer": completion},
        {"prompt": "q", "answer": completion},
        {"prompt": prompt, "answer": [*prompt, *completion]},
        {
            "prompt": "q",
            "answer": [said(ASSISTANT, "let me see", reasoning="hm"), said(USER, "so?"), *completion],
            "system": "s",
        },
    ]
    found = read_values(tmp_path / "a.jsonl", *rows, system_field="system")
    assert [row.answer for row in found] == ["a"] * 4
    assert [len(row.reply) for row in found] == [1, 1, 1, 3] and found[3].reply[0].thoughts == "hm"
    for wrong, says in (
        ([said(USER, "x"), *completion], "not the prompt's"),
        (prompt, "ends with the role user"),
        ([said(ASSISTANT, "a", weight=0)], "weight 0"),
    ):
        with pytest.raises(DataError, match=rf"'answer': .*{says}"):
            read_values(tmp_path / "a.jsonl", {"prompt": "q", "answer": wrong})
    with pytest.raises(DataError, match="'answer' has messages of the assistant, and so has the prompt"):
        read_values(tmp_path / "a.jsonl", {"prompt": CHAT, "answer": completion})


HUMAN = "\n\nHuman:"
BOT = "\n\nAssistant:"


def test_messages_under_the_answers_key_may_be_json_text(tmp_path: Path) -> None:
    said = [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    for answer in (said, json.dumps(said)):
        (row,) = read_values(tmp_path / "a.jsonl", {"prompt": "q", "answer": answer})
        assert (row.text, row.answer, len(row.reply)) == ("q", "c", 3)


def test_dialogues_become_messages(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{HUMAN} q{BOT}", "answer": " a "},
        {"prompt": f"Be brief.{HUMAN} q{BOT} b{HUMAN} c", "answer": "a"},
        {"prompt": "Human: q", "answer": f"{HUMAN} q{BOT} a{HUMAN} b{BOT} c"},
        {"prompt": f"{HUMAN} q{BOT} a"},
    ]
    found = read_values(tmp_path / "a.jsonl", *rows, dialogue={})
    assert [(row.text, row.answer) for row in found] == [
        ("q", "a"), ("system: Be brief.\n\nuser: q\n\nassistant: b\n\nuser: c", "a"), ("q", "c"), ("q", "a"),
    ]  # fmt: skip
    assert [len(row.reply) for row in found] == [0, 0, 3, 1]
    other = {"user": "<q>", "assistant": "<a>"}
    (row,) = read_values(tmp_path / "b.jsonl", {"prompt": "<q>one<a>two<q>three"}, dialogue=other)
    assert [message.content for message in row.messages] == ["one", "two", "three"]
    for text, says in (
        ("hello", "is no dialogue"),
        (f"{BOT} a{HUMAN} b", "is no dialogue"),
        (f"{HUMAN}{BOT} a", "turn 1 .*is empty"),
    ):
        with pytest.raises(DataError, match=rf"a\.jsonl:1: 'prompt': .*{says}"):
            read_values(tmp_path / "a.jsonl", {"prompt": text}, dialogue={})
    with pytest.raises(DataError, match="'answer': begins with messages that are not the prompt's"):
        read_values(tmp_path / "a.jsonl", {"prompt": f"{HUMAN} q", "answer": f"{HUMAN} other{BOT} a"}, dialogue={})


def test_the_prompt_is_what_both_responses_begin_with(tmp_path: Path) -> None:
    start = [said(SYSTEM, "s"), said(USER, "q")]
    rows = [
        {"chosen": [*start, said(ASSISTANT, "good")], "rejected": [*start, said(ASSISTANT, "bad")]},
        {"chosen": "What is 1 + 1? It is 2.", "rejected": "What is 1 + 1? It is 23."},
        {
            "chosen": json.dumps([said(USER, "q"), said(ASSISTANT, "a")]),
            "rejected": json.dumps([said(USER, "q"), said(ASSISTANT, "b")]),
        },
    ]
    found = read_values(tmp_path / "a.jsonl", *rows, prompt_field=None)
    assert [row.text for row in found] == ["system: s\n\nuser: q", "What is 1 + 1? It is", "q"]
    assert [row.reply for row in found] == [()] * 3
    (row,) = read_values(
        tmp_path / "b.jsonl",
        {"chosen": f"{HUMAN} q{BOT} good", "rejected": f"{HUMAN} q{BOT} bad", "system": "s"},
        prompt_field=None, dialogue={}, system_field="system",
    )  # fmt: skip
    assert row.messages == (Message(SYSTEM, "s"), Message(USER, "q"))
    for chosen, rejected, says in (
        ("a", [said(ASSISTANT, "a")], "expected two strings or two lists"),
        ("a", "b", "no beginning in common"),
        ("a b", "a b c", "the beginning of the other"),
        ([said(USER, "a"), said(ASSISTANT, "a")], [said(USER, "b"), said(ASSISTANT, "b")], "no prompt in common"),
        ([said(USER, "a")], [said(USER, "a")], "end with the assistant's"),
        (3, 4, "expected two strings"),
    ):
        with pytest.raises(DataError, match=rf"a\.jsonl:1: 'chosen' and 'rejected': .*{says}"):
            read_values(tmp_path / "a.jsonl", {"chosen": chosen, "rejected": rejected}, prompt_field=None)
    with pytest.raises(DataError, match="has no 'rejected'; expected both"):
        read_values(tmp_path / "a.jsonl", {"chosen": "a"}, prompt_field=None)


def test_a_text_alone_is_learnt_as_a_whole(tmp_path: Path) -> None:
    rows = [{"text": f"It was night number {number}."} for number in range(30)]
    source = {**write_jsonl(tmp_path / "a.jsonl", rows), "prompt_field": None, "answer_field": "text"}
    spec = run_spec(source, data=SMALL)
    collection = collect_prompts(spec.data, 0)
    assert {(prompt.text, prompt.reply) for prompt in collection.held_out} == {("", ())}
    assert [prompt.answer for prompt in collection.held_out] == ["It was night number 29.", "It was night number 28."]
    assert len(list(collection.train[0])) == 27 and not first_answerless(spec.data, 0)
    whole = read_values(
        tmp_path / "b.jsonl", {"text": f"{HUMAN} q{BOT} a"}, prompt_field=None, answer_field="text", dialogue={}
    )
    assert (whole[0].text, whole[0].reply) == ("q", (Message(ASSISTANT, "a"),))
    (row,) = read_values(
        tmp_path / "c.jsonl", {"text": "<|user|>q<|end|>"}, prompt_field=None, answer_field="text", rendered=True
    )
    assert row.rendered and row.answer == "<|user|>q<|end|>"
    with pytest.raises(DataError, match=r"neither 'chosen' and 'rejected' nor 'text'"):
        read_values(tmp_path / "d.jsonl", {"txt": "a"}, prompt_field=None, answer_field="text")
    with pytest.raises(DataError, match=r"'text' is learnt as a whole, so that 'system' has no place"):
        read_values(
            tmp_path / "d.jsonl",
            {"text": "a", "system": "s"},
            prompt_field=None,
            answer_field="text",
            system_field="system",
        )


def test_rendered_prompts_are_texts(tmp_path: Path) -> None:
    text = json.dumps([said(USER, "q")])
    (row,) = read_values(tmp_path / "a.jsonl", {"prompt": text}, rendered=True)
    assert (row.text, row.messages, row.rendered) == (text, (), True)
    with pytest.raises(DataError, match=r"'prompt' must be a non-empty string$"):
        read_values(tmp_path / "a.jsonl", {"prompt": [said(USER, "q")]}, rendered=True)


def test_a_task_is_known_by_its_messages_system_message_and_tools(tmp_path: Path) -> None:
    chat = [said(USER, "q"), said(ASSISTANT, "a"), said(USER, "c")]
    rows = [
        {"prompt": "q"}, {"prompt": "q", "system": "s"}, {"prompt": "q", "system": "t"}, {"prompt": "q", "tools": [TOOL]},
        {"prompt": "q", "tools": [{"name": "other"}]}, {"prompt": chat}, {"prompt": [*chat[:1], said(ASSISTANT, "b"), chat[2]]},
    ]  # fmt: skip
    found = read_values(tmp_path / "a.jsonl", *rows, system_field="system", tools_field="tools")
    assert len({task_key(row) for row in found}) == len(rows)
    same = read_values(
        tmp_path / "b.jsonl",
        {"prompt": " Q"},
        {"prompt": [said(USER, "q"), said(ASSISTANT, "x")]},
        {"prompt": [said(USER, "q")]},
    )
    assert {task_key(row) for row in same} == {task_key(found[0])}


def test_repeated_questions_are_never_held_out_and_trained(tmp_path: Path) -> None:
    rows = [
        {"prompt": [said(USER, f"q{number % 20}")], "reward_model": {"ground_truth": number % 20}}
        for number in range(80)
    ]
    data = run_spec(
        {**write_parquet(tmp_path / "a.parquet", rows), "answer_field": "reward_model.ground_truth"}, data=SMALL
    ).data
    collection = collect_prompts(data, 0)
    held = {p.text for p in collection.held_out}
    train_texts = [p.text for p in collection.train[0]]
    assert len(held) == 2 and not held & set(train_texts) and len(train_texts) == 17 * 4


def test_errors_name_the_row(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.jsonl:2: 'prompt': message 1 is from 'alpaca'; expected one of system, human"
    ):
        read_json(tmp_path / "a.jsonl", '{"prompt": "a"}\n{"prompt": [{"from": "alpaca", "value": "x"}]}\n')
