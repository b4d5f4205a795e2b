"""A tokenizer with more tokens than the embedding has rows: no text, template or stop string may make such a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import SPELL, run_spec
from tests.models.folders import CHATML, make_folder
from tests.prompts.questions import question
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.codec_check import check_codec
from yatt_core.models.config_file import read_config
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.codec import open_codec

LOOSE = ("<a_soft>", "<b_soft>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", more=LOOSE, spare=-2)


def spec_of(folder: Path, **rollout: Any) -> Any:
    return run_spec(SPELL, model={"kind": "folder", "path": str(folder)}, rollout={"max_new_tokens": 6, **rollout})


def test_a_tokenizer_whose_tokens_all_have_rows_is_returned_as_it_is(tmp_path: Path) -> None:
    whole = make_folder(tmp_path / "whole", more=LOOSE)
    tokenizer = load_tokenizer(whole)
    assert within_rows(tokenizer, read_config(whole), whole) is tokenizer


@pytest.mark.parametrize("text", ["plain", "", "a < b_soft >", "ü€"])
def test_texts_without_such_tokens_are_encoded_as_before(folder: Path, text: str) -> None:
    plain = load_tokenizer(folder)
    guarded = within_rows(plain, read_config(folder), folder)
    assert guarded(text)["input_ids"] == plain(text)["input_ids"] and len(guarded) == len(plain) == 260
    assert guarded([text, "b"])["input_ids"] == plain([text, "b"])["input_ids"]


@pytest.mark.parametrize(("text", "token"), [("see <a_soft>!", 258), ("<b_soft>", 259)])
def test_a_text_that_makes_one_is_refused_by_its_name(folder: Path, text: str, token: int) -> None:
    codec = open_codec(spec_of(folder), str(folder))
    with pytest.raises(DataError, match=rf"prompt p/1 contains '<._soft>', token {token}, .* 258 rows"):
        codec.encode_prompt(question(text, "p/1", rendered=True))
    with pytest.raises(DataError, match=rf"token {token}"):
        codec.encode_answer(text)


def test_a_stop_string_and_a_template_that_make_one_are_refused(folder: Path) -> None:
    check_codec(spec_of(folder))
    with pytest.raises(ConfigurationError, match=r"rollout\.stop: '<a_soft>' contains '<a_soft>', token 258"):
        check_codec(spec_of(folder, stop=["<a_soft>"]))
    (folder / "chat_template.jinja").write_text(f"<b_soft>{CHATML}")
    with pytest.raises(ConfigurationError, match=r"model\.path: .*chat template.* contains '<b_soft>', token 259"):
        check_codec(spec_of(folder))
