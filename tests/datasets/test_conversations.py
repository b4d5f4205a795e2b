"""Rows that hold conversations: their messages and transcripts, from every format, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.datasets.test_source_files import SMALL, hugging_face, train, write_parquet
from tests.inputs.example_specs import EXACT, VIRTUAL, run_spec, write_image_source, write_jsonl
from yatt_core.datasets.sources import collect_prompts
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.reader import Inputs
from yatt_core.models.tokenizer import IMAGE, load_tokenizer
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.prompts.prompt import Completion, Message, Prompt
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.rewards.scheme import RewardSpec


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def conversation(number: int) -> list[dict[str, Any]]:
    return [
        said("system", "Be brief."),
        said("user", f"{number} + 1?"),
        said("assistant", "no"),
        said("user", "Again?"),
    ]


ROWS = [{"messages": conversation(number), "answer": str(number + 1)} for number in range(30)]


@pytest.mark.parametrize("file_format", ["jsonl", "parquet", "arrow"])
def test_every_format_gives_the_same_conversations(tmp_path: Path, file_format: str) -> None:
    if file_format == "jsonl":
        source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    elif file_format == "parquet":
        source = write_parquet(tmp_path / "a.parquet", ROWS)
    else:
        (tmp_path / "d").mkdir()
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(tmp_path / "d" / "train.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as to:
            to.write_table(table)
        source = hugging_face(tmp_path / "d")
    first = train({**source, "prompt_field": "messages"})[0]
    assert [(message.role, message.content) for message in first.messages] == [
        ("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "no"), ("user", "Again?"),
    ]  # fmt: skip
    assert first.text == "system: Be brief.\n\nuser: 1 + 1?\n\nassistant: no\n\nuser: Again?"
    assert (first.answer, first.entry["messages"]) == ("2", conversation(1))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "no messages"),
        (["hello"], "message 1 is str"),
        ([said("robot", "a")], r"message 1 has the role 'robot'.*system, user, assistant"),
        ([said("user", "a"), said("system", "b"), said("user", "c")], "message 2 has the role system"),
        ([said("assistant", "a"), said("assistant", "b")], "begins with the assistant's message"),
        ([said("user", "")], "message 1: content"),
        ([said("user", None)], "message 1: content"),
        ([{**said("user", "a"), "tool_calls": [1]}], "message 1 has the key 'tool_calls'"),
        ([said("user", [{"type": "video"}])], "message 1, part 1"),
        ([said("user", [{"type": "image", "url": "http://a/b.png"}])], "message 1, part 1: .*image_field"),
    ],
)
def test_what_is_no_conversation_is_named_with_its_row(tmp_path: Path, messages: Any, says: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "fine"}, {"prompt": messages}])
    with pytest.raises(DataError, match=rf"a\.jsonl:2: 'prompt': .*{says}"):
        train(source)


def test_one_message_of_the_user_is_its_text(tmp_path: Path) -> None:
    rows = [{"prompt": [{**said("user", f"q{number}"), "name": None}]} for number in range(9)]
    assert {(prompt.text, prompt.messages) for prompt in train(write_jsonl(tmp_path / "a.jsonl", rows))} <= {
        (f"q{number}", ()) for number in range(9)
    }


def test_parts_mark_the_places_of_the_images_of_the_row(tmp_path: Path) -> None:
    source = write_image_source(tmp_path / "i", 8)
    part = [said("user", [{"type": "text", "text": "This: "}, {"type": "image"}]), said("assistant", "?")]
    rows = [{"prompt": [*part, said("user", "Which?")], "image": f"{number}.png"} for number in range(8)]
    write_jsonl(tmp_path / "i" / "rows.jsonl", rows)
    prompt = collect_prompts(run_spec(source, data=SMALL, **VIRTUAL).data, 0).held_out[0]
    assert prompt.messages[0] == Message("user", f"This: {IMAGE}") and len(prompt.media) == 1


def test_conversations_are_part_of_the_inputs_and_of_their_digest(tmp_path: Path) -> None:
    spec = run_spec(
        {**write_jsonl(tmp_path / "a.jsonl", ROWS), "prompt_field": "messages"},
        data={"held_out": 3, "probe": 0}, rewards={"parts": EXACT}, **VIRTUAL,
    )  # fmt: skip
    receipt = materialise(spec, tmp_path / "r")
    found = Inputs.open(tmp_path / "r" / "inputs", spec).demonstrations(5)
    assert [prompt.messages[1].content for prompt in found] == [f"{number} + 1?" for number in range(5)]
    same_texts = [{"messages": _flat(row["messages"]), "answer": row["answer"]} for row in ROWS]
    write_jsonl(tmp_path / "a.jsonl", same_texts)
    assert materialise(spec, tmp_path / "other").data_digest != receipt.data_digest


def _flat(messages: list[dict[str, Any]]) -> str:
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def test_a_model_made_for_the_run_learns_the_words_of_the_messages(tmp_path: Path) -> None:
    model = {
        "kind": "from_config",
        "hidden_size": 8,
        "layers": 1,
        "heads": 1,
        "key_value_heads": 1,
        "max_positions": 64,
    }
    source = {**write_jsonl(tmp_path / "a.jsonl", ROWS), "prompt_field": "messages"}
    spec = run_spec(source, data={"held_out": 3, "probe": 3}, model={**model, "intermediate_size": 8})
    receipt = materialise(spec, tmp_path / "r")
    prompt = Inputs.open(tmp_path / "r" / "inputs", spec).demonstrations(1)[0]
    tokens = encode_question(prompt, open_codec(spec, receipt.model_path))
    rendered = load_tokenizer(Path(receipt.model_path)).decode(tokens)
    assert rendered == "be brief.<sep>3 + 1?<sep>no<eos>again?<sep>"


def test_reward_functions_receive_the_messages() -> None:
    prompt = Prompt(0, 0, "0/a:1", "text", None, {}, messages=tuple(Message("user", text) for text in ("a", "b")))
    part = {"name": "own", "function": "tests.rewards.own_rewards:messages"}
    scorer = RewardScorer(RewardSpec.model_validate({"parts": [part]}))
    (score,) = scorer.score([Scored(prompt, Completion("x", "x", 1), 0)])
    assert score.total == 2.0
