"""Rows to learn from without sampling: what is wrong with one is reported with file and row, and long responses are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from yatt_core.errors import DataError, TooLongError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.reader import Inputs
from yatt_core.inputs.row_batch import held_out_batch, row_batch
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.rows import responses_of
from yatt_core.protocols.receipts import PromptRef
from yatt_core.spec.run import RunSpec

MODEL = {"kind": "from_config", "hidden_size": 8, "layers": 1, "heads": 1, "key_value_heads": 1, "intermediate_size": 8}
PAIR = {"prompt": "p", "chosen": "good", "rejected": "bad", "answer": "good", "label": True}


def spec_of(folder: Path, rows: list[dict[str, Any]], objective: dict[str, Any], **data: Any) -> RunSpec:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunSpec.model_validate(
        {
            "name": "rows",
            "model": MODEL,
            "data": {"sources": [{"kind": "jsonl", "path": str(path)}], "held_out": 1, **data},
            "rollout": {"max_new_tokens": 6},
            "objective": objective,
        }
    )


def numbered(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{**PAIR, "prompt": f"prompt {number}", **changes} for number in range(count)]


DPO = {"kind": "dpo"}
REWARD = {"kind": "reward_model", "template": "{response}"}


@pytest.mark.parametrize(
    ("objective", "change", "key"),
    [
        (DPO, {"rejected": None}, "rejected"),
        (DPO, {"chosen": 7}, "chosen"),
        (DPO, {"chosen": [{"role": "user", "content": "?"}]}, "chosen"),
        (DPO, {"chosen": [{"role": "user", "content": "other"}, {"role": "assistant", "content": "a"}]}, "chosen"),
        (DPO, {"chosen": "much too long"}, "max_new_tokens"),
        (REWARD, {"rejected": []}, "rejected"),
        (REWARD, {"chosen": [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]}, "thoughts"),
        ({"kind": "kto"}, {"label": "yes"}, "label"),
        ({"kind": "kto"}, {"label": None}, "label"),
        ({"kind": "sft"}, {"answer": None}, "answer"),
    ],
)
def test_a_row_that_cannot_be_used(objective: dict[str, Any], change: dict[str, Any], key: str, tmp_path: Path) -> None:
    rows = numbered(5)
    rows[2] |= change
    with pytest.raises(DataError) as raised:
        materialise(spec_of(tmp_path, rows, objective), tmp_path / "run")
    assert "rows.jsonl:3" in str(raised.value) and key in str(raised.value)
    assert not (tmp_path / "run" / "inputs").exists()


def batch_of(spec: RunSpec, run: Path, *positions: int) -> tuple[Any, Any]:
    receipt = materialise(spec, run)
    inputs = Inputs.open(run / "inputs", spec)
    codec = open_codec(spec, receipt.model_path)
    return row_batch(spec, inputs, codec, [PromptRef(5 + p, 0, p) for p in positions]), codec


def texts(batch: Any, codec: Any) -> list[str]:
    return [
        codec.decode(batch.response_tokens[start:stop])
        for start, stop in zip(batch.response_offsets[:-1], batch.response_offsets[1:], strict=True)
    ]


def test_pairs_are_a_group_of_two(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "prompt 1"}, {"role": "assistant", "content": "good"}]
    rows = [*numbered(1), {**PAIR, "prompt": "prompt 1", "chosen": messages}, *numbered(1, prompt="last")]
    batch, codec = batch_of(spec_of(tmp_path, rows, DPO), tmp_path / "run", 0, 1)
    assert texts(batch, codec) == ["good", "bad"] * 2
    assert batch.ordinals.tolist() == [5, 5, 6, 6] and batch.samples.tolist() == [0, 1, 0, 1]
    assert batch.rewards.tolist() == [1.0, 0.0] * 2 and batch.loss_mask.all()


def test_a_cut_that_leaves_nothing_to_learn_names_what_to_raise(tmp_path: Path) -> None:
    rows = numbered(5)
    said = [("assistant", "a good one"), ("user", "b"), ("assistant", "c")]
    rows[2]["answer"] = [{"role": role, "content": text, "weight": int(text == "c")} for role, text in said]
    with pytest.raises(
        DataError, match=r"rows\.jsonl:3.*nothing that is learnt .*raise rollout\.max_new_tokens"
    ) as raised:
        materialise(spec_of(tmp_path, rows, {"kind": "sft"}, over_long="cut_end"), tmp_path / "run")
    assert not isinstance(raised.value, TooLongError)


@pytest.mark.parametrize("label", ["true", "False", " 1", "0", "TRUE"])
def test_labels_of_a_file_in_which_every_value_is_text(label: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, numbered(5), {"kind": "kto"})
    prompt = Prompt(0, 0, "p", "a", "b", {"label": label})
    assert responses_of(spec, prompt).desirable is (label.strip().lower() in ("true", "1"))


def test_a_labelled_response_comes_with_that_to_the_next_prompt(tmp_path: Path) -> None:
    rows = [{**PAIR, "prompt": f"prompt {i}", "answer": "abcd"[i], "label": i == 1} for i in range(4)]
    spec = spec_of(tmp_path, rows, {"kind": "kto"})
    batch, codec = batch_of(spec, tmp_path / "run", 0, 1, 2)
    own = texts(batch, codec)[::2]
    assert texts(batch, codec)[1::2] == own[1:] + own[:1]
    assert batch.rewards[::2].tolist() == [float(text == "b") for text in own]


@pytest.mark.parametrize(("over_long", "left"), [("skip", 3), ("cut_end", 4)])
def test_long_responses_are_left_out_or_cut(over_long: str, left: int, tmp_path: Path) -> None:
    rows = numbered(5)
    rows[2]["chosen"] = "much too long"
    spec = spec_of(tmp_path, rows, DPO, over_long=over_long)
    receipt = materialise(spec, tmp_path / "run")
    assert receipt.train_prompts == left
    batch, _ = batch_of(spec, tmp_path / "run", *range(left))
    assert batch.response_lengths.max() == (5 if over_long == "skip" else 6)
    assert np.count_nonzero(batch.truncated) == (over_long == "cut_end")


def test_held_out_rows(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, numbered(5), DPO)
    batch, codec = batch_of(spec, tmp_path / "run", 0)
    held_out = held_out_batch(spec, Inputs.open(tmp_path / "run" / "inputs", spec), codec)
    assert held_out.ordinals.tolist() == [0, 0] and len(batch) == 2
