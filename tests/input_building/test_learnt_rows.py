"""What is learnt of rows in the forms of the field: conversations, common beginnings, dialogues, texts alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.input_building.test_rows import batch_of, spec_of
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise

SFT = {"kind": "sft"}
DPO = {"kind": "dpo"}
Row = dict[str, Any]


def said(*texts: str) -> list[Row]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


def source(**keys: Any) -> Row:
    return {"kind": "jsonl", **keys}


def rows_of(row: Row, count: int = 5) -> list[Row]:
    """Returns rows that differ by a number that stands for `#` in a row's texts."""

    def numbered(value: Any, number: int) -> Any:
        if isinstance(value, str):
            return value.replace("#", str(number))
        if isinstance(value, list):
            return [numbered(part, number) for part in value]
        return {key: numbered(part, number) for key, part in value.items()} if isinstance(value, dict) else value

    return [numbered(row, number) for number in range(count)]


def learnt(tmp_path: Path, row: Row, objective: Row, **keys: Any) -> tuple[list[str], list[str]]:
    """Returns the prompts and the learnt texts of the samples of one prompt."""
    made = spec_of(tmp_path, rows_of(row), objective)
    data = {"sources": [{**made.data.sources[0].model_dump(exclude_none=True), **keys}], "held_out": 1}
    tree = {
        **made.model_dump(mode="json", exclude={"data", "rewards"}),
        "data": data,
        "rollout": {"max_new_tokens": 80},
    }
    spec = type(made).model_validate(tree)
    batch, codec = batch_of(spec, tmp_path / "run", 0)
    prompts = [
        codec.tokenizer.decode(batch.prompt_tokens[start:stop])
        for start, stop in itertools.pairwise(batch.prompt_offsets.tolist())
    ]
    replies = [
        codec.tokenizer.decode(batch.response_tokens[start:stop][batch.loss_mask[start:stop]])
        for start, stop in itertools.pairwise(batch.response_offsets.tolist())
    ]
    return prompts, replies


def test_all_turns_of_a_conversation_but_those_of_weight_0_are_learnt(tmp_path: Path) -> None:
    turns = said("q#", "one", "more", "two", "again", "three")
    turns[3]["weight"] = 0
    prompts, replies = learnt(tmp_path, {"messages": turns}, SFT, prompt_field="messages")
    assert prompts[0].endswith("<sep>") and replies == ["one<eos>three<eos>"]


def test_messages_under_the_answers_key_are_learnt(tmp_path: Path) -> None:
    row = {"prompt": said("q#"), "completion": said("", "good")[1:]}
    assert learnt(tmp_path, row, SFT, answer_field="completion")[1] == ["good<eos>"]


def test_a_text_alone_is_learnt_as_a_whole_but_for_its_first_token(tmp_path: Path) -> None:
    prompts, replies = learnt(tmp_path, {"text": "a tale #"}, SFT, prompt_field=None, answer_field="text")
    assert (prompts[0] + replies[0]).startswith("a tale ") and replies[0].endswith("<eos>")
    assert len(prompts[0]) < len("a tale ")


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        ({"chosen": said("q#", "a", "b", "good"), "rejected": said("q#", "a", "b", "bad")}, {}),
        (
            {
                "chosen": "\n\nHuman: q#\n\nAssistant: a\n\nHuman: b\n\nAssistant: good",
                "rejected": "\n\nHuman: q#\n\nAssistant: a\n\nHuman: b\n\nAssistant: bad",
            },
            {"dialogue": {}},
        ),
        (
            {"chosen": [{"from": "human", "value": "q#"}, {"from": "gpt", "value": "good"}],
             "rejected": [{"from": "human", "value": "q#"}, {"from": "gpt", "value": "bad"}]},
            {},
        ),
    ],
    ids=["messages", "dialogue", "sharegpt"],
)  # fmt: skip
def test_what_is_behind_the_common_beginning_is_compared(tmp_path: Path, row: Row, keys: Row) -> None:
    prompts, replies = learnt(tmp_path, row, DPO, prompt_field=None, **keys)
    assert prompts[0] == prompts[1] and replies == ["good<eos>", "bad<eos>"]


def test_rendered_texts_are_compared_as_they_are(tmp_path: Path) -> None:
    row = {"chosen": "Q: # A: good", "rejected": "Q: # A: bad"}
    prompts, replies = learnt(tmp_path, row, DPO, prompt_field=None, rendered=True)
    assert prompts[0] == prompts[1] and prompts[0].endswith("a:")
    assert [reply.strip() for reply in replies] == ["good<eos>", "bad<eos>"]


def test_keys_may_lead_into_objects(tmp_path: Path) -> None:
    row = {"input": {"q": "q#"}, "pair": {"best": "good", "worst": "bad"}}
    keys = {"prompt_field": "input.q", "chosen_field": "pair.best", "rejected_field": "pair.worst"}
    assert learnt(tmp_path, row, DPO, **keys)[1] == ["good<eos>", "bad<eos>"]


def test_several_right_answers_are_not_one_demonstration(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the row has 2 answers; expected one to learn from"):
        learnt(tmp_path, {"prompt": "q#", "answer": ["a", "b"]}, SFT)


def test_a_run_that_samples_needs_the_users_turn_last(tmp_path: Path) -> None:
    made = spec_of(tmp_path, rows_of({"messages": said("q#", "one")}), SFT)
    tree = made.model_dump(mode="json", exclude={"objective", "rewards"})
    tree["data"]["sources"][0] |= {"prompt_field": "messages"}
    tree["rewards"] = {"parts": [{"name": "right", "function": "exact_match"}]}
    with pytest.raises(
        DataError, match=r"rows\.jsonl:1: the conversation ends with the role assistant: it is a demonstration"
    ):
        materialise(type(made).model_validate(tree), tmp_path / "run")
