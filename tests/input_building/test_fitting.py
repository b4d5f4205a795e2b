"""A prompt that does not fit is named while the inputs are built, not when it is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec, write_jsonl
from tests.prompts.test_image_tokens import PROMPTS, write_config
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.codec_check import check_codec
from yatt_core.input_building.fitting import check_first_prompts, check_longest, check_prompts
from yatt_core.input_building.materialise import materialise
from yatt_core.models.tokenizer import IMAGE, save_tokenizer, train_tokenizer
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.stream import Prompt
from yatt_core.spec.sections.model import TokenizerSpec

FEW = {"held_out": 4, "probe": 4, "max_prompt_tokens": 20}
TINY = {"hidden_size": 8, "layers": 1, "heads": 1, "key_value_heads": 1, "intermediate_size": 8, "max_positions": 64}


@pytest.mark.parametrize("rest", [VIRTUAL, {"model": {"kind": "from_config", **TINY}}], ids=["virtual", "model"])
@pytest.mark.parametrize("row", [11, 39], ids=["training", "held-out"])
def test_a_row_that_is_too_long_is_named_with_its_file(tmp_path: Path, rest: dict, row: int) -> None:
    rows = [{"prompt": f"q{i}", "answer": "a"} for i in range(1, 41)]
    rows[row - 1]["prompt"] = "0123456789" * 3
    spec = run_spec(write_jsonl(tmp_path / "long.jsonl", rows), data=FEW, **rest)
    split = r"0/train/long\.jsonl"
    place = rf"data\.sources\.0 \({tmp_path}/long\.jsonl\): prompt {split}:{row} has 3\d tokens; at most 20 fit"
    with pytest.raises(DataError, match=place):
        materialise(spec, tmp_path / "r")
    assert not list((tmp_path / "r").iterdir()), "nothing is left half-finished"


def test_generated_prompts_are_checked_too(tmp_path: Path) -> None:
    spec = run_spec({**SPELL, "size": 200}, data={**FEW, "max_prompt_tokens": 30}, **VIRTUAL)
    with pytest.raises(
        DataError, match=r"data\.sources\.0 \(spell_backward\): prompt 0/\S+spell_backward:\d+ has \d+ tokens"
    ):
        materialise(spec, tmp_path / "r")


@pytest.mark.parametrize(
    ("text", "media", "says"),
    [
        (f"{IMAGE} or {IMAGE}?", 1, "has 1 images.*<image> 2 times"),
        ("a", 15, "has 62 tokens, 60 for 15 images; at most 58 fit"),
    ],
)
def test_images_that_a_text_has_no_place_for_are_named_by_row(tmp_path: Path, text: str, media: int, says: str) -> None:
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, [], with_images=True), tmp_path, 64)
    source = {"kind": "jsonl", "path": "pictures.jsonl", "image_field": "image"}
    spec = run_spec(source, model={"kind": "folder", "path": str(write_config(tmp_path))})
    good = Prompt(0, 0, "0/train/pictures.jsonl:1", "a", "1", {}, ("0" * 64,))
    bad = Prompt(0, 1, "0/train/pictures.jsonl:2", text, "1", {}, ("0" * 64,) * media)
    codec = open_codec(spec, str(tmp_path))
    assert check_prompts(spec, codec, str(tmp_path), [[good]]) == {"prompt_id": good.prompt_id, "tokens": 6}
    with pytest.raises(
        DataError, match=rf"data\.sources\.0 \(pictures\.jsonl\): prompt 0/train/pictures\.jsonl:2 {says}"
    ):
        check_prompts(spec, codec, str(tmp_path), [[good], [bad]])


def test_all_rows_that_do_not_fit_are_named_with_the_values_that_make_room(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": "ABC"} for i in range(1, 41)]
    for row in range(4, 30, 2):
        rows[row]["prompt"] = "0123456789" * 3 + str(row)
    model = {"kind": "from_config", **TINY, "max_positions": 36}
    rewards = {"parts": [{"name": "exact", "function": "exact_match"}]}
    spec = run_spec(write_jsonl(tmp_path / "long.jsonl", rows), data=FEW, model=model, rewards=rewards)
    with pytest.raises(DataError) as caught:
        materialise(spec, tmp_path / "r")
    lines = str(caught.value).splitlines()
    assert sum("at most 20 fit" in line for line in lines) == 10
    assert any("3 more prompts" in line for line in lines)
    (room,) = (line for line in lines if "the longest prompt has 3" in line)
    longest = int(room.split("has ")[1].split()[0])
    assert f"data.max_prompt_tokens: {longest} or more" in room
    assert f"rollout.max_new_tokens: {36 - longest} or less" in room
    assert "'ABC' becomes 'abc'" in lines[-1], "answers are checked as well"


def test_a_default_of_new_tokens_beyond_the_positions_names_the_number_that_fits(tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, [], with_images=True), tmp_path, 64)
    model = {"kind": "folder", "path": str(write_config(tmp_path))}
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "a" * (1 + row % 5)} for row in range(40)])
    spec = run_spec(source, data=FEW, model=model, rollout={})
    check_codec(spec)
    with pytest.raises(
        ConfigurationError, match=r"no room.*\n.*longest prompt has 6 tokens; .*max_new_tokens: 58 or less"
    ):
        check_first_prompts(spec)
    check_first_prompts(run_spec(source, data=FEW, model=model, rollout={"max_new_tokens": 58}))


def test_a_later_spec_that_leaves_less_room_names_the_longest_prompt(tmp_path: Path) -> None:
    rows = [{"prompt": f"{'q' * (i % 7)}{i}"} for i in range(40)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    receipt = materialise(run_spec(source, data=FEW, **VIRTUAL), tmp_path / "r")
    assert materialise(run_spec(source, data={**FEW, "max_prompt_tokens": 8}, **VIRTUAL), tmp_path / "r") == receipt
    less = run_spec(source, data={**FEW, "max_prompt_tokens": 7}, **VIRTUAL)
    with pytest.raises(
        ConfigurationError, match=r"data\.max_prompt_tokens: prompt 0/train/a\.jsonl:14 .* has 8 tokens;.* 7 "
    ):
        materialise(less, tmp_path / "r")
    check_longest(less, "", {})  # inputs from before longest prompts were recorded
