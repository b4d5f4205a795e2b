"""The trained tokenizer: common phrases are one token each, everything else is split into characters."""

import json
import tempfile

import pytest

from yatt_core.errors import ConfigurationError
from yatt_core.models.tokenizer import SPECIALS, common_phrases, load_tokenizer, save_tokenizer, train_tokenizer
from yatt_core.spec.sections.model import TokenizerSpec

WORDS = ["Sun", "moon", "star", "Gnu", "ape", "fox", "owl", "elk", "hen", "cow"]
PROMPTS = [f"Spell this word backward (example: sun -> nus): {word}" for word in WORDS]
PHRASE = "spell this word backward (example: sun -> nus):"


def test_the_template_is_one_token_and_words_are_characters():
    tokenizer = train_tokenizer(TokenizerSpec(), PROMPTS, ["nuS"])
    assert tokenizer.encode("Spell this word backward (example: sun -> nus): Foam").tokens == [PHRASE, " ", *"foam"]
    assert [tokenizer.token_to_id(token) for token in SPECIALS] == [0, 1, 2, 3]
    assert tokenizer.decode(tokenizer.encode(PROMPTS[0]).ids) == PROMPTS[0].lower()


def test_case_is_kept_on_request():
    tokenizer = train_tokenizer(TokenizerSpec(lowercase=False), PROMPTS, [])
    assert tokenizer.decode(tokenizer.encode(PROMPTS[0]).ids) == PROMPTS[0]
    assert tokenizer.encode("Gnu").tokens == ["G", "n", "u"]


def test_a_rare_phrase_is_not_a_token():
    prompts = [*PROMPTS, *["How many legs has an ant?"] * 2]
    assert common_phrases([p.lower() for p in prompts], 0.2) == [PHRASE]
    assert "how many legs has an ant?" in common_phrases([p.lower() for p in prompts], 0.05)


def test_numbers_and_single_letters_stay_spelled_out():
    prompts = [f"Add 12 and {i}, x" for i in range(10)]
    assert common_phrases(prompts, 0.2) == [" and", "Add"]
    assert common_phrases(prompts[:1], 0.2) == []


def test_a_phrase_inside_a_word_is_not_taken():
    tokenizer = train_tokenizer(TokenizerSpec(), [f"the {word}" for word in WORDS], ["bathed", "theme"])
    assert tokenizer.encode("the").tokens == ["the"]
    assert tokenizer.encode("bathed").tokens == list("bathed")
    assert tokenizer.encode("theme").tokens == list("theme")


def test_phrases_with_pattern_characters_and_line_breaks():
    prompts = [f"[a+b]*(c|d)?\n\tSolve\\it.$^ now{i}" for i in range(10)]
    tokenizer = train_tokenizer(TokenizerSpec(), prompts, [])
    assert all(tokenizer.decode(tokenizer.encode(p).ids) == p.lower() for p in prompts)
    assert len(tokenizer.encode(prompts[0]).ids) < len(prompts[0]) / 2


def test_unknown_characters_become_one_token_each():
    tokenizer = train_tokenizer(TokenizerSpec(), PROMPTS, [])
    assert tokenizer.encode("s€€").ids[1:] == [3, 3]


def test_training_and_saving_is_deterministic_and_leaves_nothing_behind(tmp_path, monkeypatch):
    litter = tmp_path / "litter"
    litter.mkdir()
    monkeypatch.setenv("TMPDIR", str(litter))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in ("a", "b"):
        save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, []), tmp_path / name, 256)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir()) and "tokenizer.json" in names
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    assert not list(litter.iterdir())


def test_the_chat_template_puts_the_separator_after_the_prompt(tmp_path):
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, []), tmp_path / "t", 256)
    tokenizer = load_tokenizer(tmp_path / "t")
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    assert tokenizer.apply_chat_template(turns[1:2], tokenize=False, add_generation_prompt=True) == "U<sep>"
    assert tokenizer.apply_chat_template(turns[:2], tokenize=False, add_generation_prompt=True) == "S<sep>U<sep>"
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "S<sep>U<sep>A<eos>"
    assert tokenizer.eos_token_id == 1 and tokenizer.pad_token_id == 0 and tokenizer.model_max_length == 256


def test_a_damaged_tokenizer_is_a_configuration_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(ConfigurationError, match=f"tokenizer in {tmp_path} cannot be loaded"):
        load_tokenizer(tmp_path)
