"""The bound on a text's tokens is never below their number, whatever the tokenizer, and some rows need no encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.inputs.example_specs import SPELL, run_spec
from tests.matrix import examples
from tests.models.folders import make_folder
from yatt_core.input_building.lengths import bound_of
from yatt_core.prompts.codec import PromptCodec, open_codec
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.token_bounds import FrameSavings, TokenBound

CORPUS = [
    "the cat sat on the mat",
    "naïve café Ωμέγα",
    "12 + 34 = 46\n\n",
    "漢字かな交じり文",
    "<|x|> is no token here",
]
NORMALIZERS = {
    "none": lambda: None,
    "nfc": normalizers.NFC,
    "nfkc": normalizers.NFKC,
    "lower": normalizers.Lowercase,
    "both": lambda: normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()]),
    "strip": normalizers.StripAccents,
    "replace": lambda: normalizers.Replace(" ", "▁▁▁▁▁"),
    "prepend": lambda: normalizers.Prepend("▁▁▁"),
}
CUTS = {
    "bytes": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "prefix": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
    "split": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+|\w+|."), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
    "words": pre_tokenizers.Whitespace,
    "metaspace": pre_tokenizers.Metaspace,
    "whole": lambda: None,
}
ADDED = ("<|x|>", "<|xx|>", "|>", "<s>", "  ", "é")
PIECES = st.sampled_from(
    [
        "a",
        "the ",
        "cat",
        " ",
        "\n",
        "é",
        "e\u0301",
        "\u0344",
        "ﬃ",
        "İ",
        "Ω",
        "漢",
        "🎈",
        "\u0338",
        "<",
        "|",
        ">",
        "x",
        *ADDED,
    ]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join)


def tokenizer_of(normalizer: str, cut: str, merges: int, added: tuple[str, ...], fallback: bool) -> Any:
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=fallback))
    core.normalizer = NORMALIZERS[normalizer]()
    core.pre_tokenizer = CUTS[cut]()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if cut in ("bytes", "split") and not fallback else []
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=300 + merges, special_tokens=["<unk>", *(f"<0x{n:02X}>" for n in range(256) if fallback)],
        initial_alphabet=alphabet, show_progress=False,
    ))  # fmt: skip
    core.decoder = decoders.ByteLevel()
    core.add_tokens(
        [AddedToken(text, normalized=number % 2 == 1, single_word=number == 3) for number, text in enumerate(added)]
    )
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added[::2]])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<unk>")


@settings(deadline=None, max_examples=examples(150))
@given(
    st.sampled_from(sorted(NORMALIZERS)), st.sampled_from(sorted(CUTS)), st.sampled_from([0, 60]),
    st.lists(st.sampled_from(ADDED), unique=True).map(tuple), st.booleans(), st.lists(TEXTS, min_size=1, max_size=8),
)  # fmt: skip
def test_the_bound_is_never_below_the_number_of_tokens(
    normalizer: str, cut: str, merges: int, added: tuple[str, ...], fallback: bool, texts: list[str]
) -> None:
    tokenizer = tokenizer_of(normalizer, cut, merges, added, fallback)
    bound = TokenBound.of(tokenizer)
    for text in texts if bound is not None else ():
        most = bound.most(text)
        made = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert most is None or made <= most, (text, made, most)
        if most is not None:
            savings = FrameSavings.of(tokenizer, text)
            assert made <= most - savings.tokens(savings.counts(text)), (text, savings.texts)


@pytest.mark.parametrize(
    ("normalizer", "cut", "text", "known"),
    [
        ("none", "bytes", "naïve 漢", True), ("nfc", "bytes", "naïve", True), ("nfc", "bytes", "e\u0301", False),
        ("lower", "bytes", "abc", True), ("lower", "bytes", "İ", False), ("none", "split", "a b", True),
        ("none", "prefix", "a", False), ("none", "metaspace", "a", False), ("strip", "bytes", "a", False),
        ("replace", "bytes", "a", False), ("prepend", "bytes", "a", False),
    ],
)  # fmt: skip
def test_what_is_not_sure_has_no_bound(normalizer: str, cut: str, text: str, known: bool) -> None:
    bound = TokenBound.of(tokenizer_of(normalizer, cut, 20, (), False))
    assert (bound is not None and bound.most(text) == len(text.encode())) == known


def test_special_tokens_that_are_split_save_nothing() -> None:
    tokenizer = tokenizer_of("none", "bytes", 20, ("<|x|>",), False)
    assert TokenBound.of(tokenizer) is not None
    tokenizer.split_special_tokens = True
    assert TokenBound.of(tokenizer) is None


@pytest.mark.parametrize(
    ("added", "saved"),
    [(("<|x|>",), ("<|x|>",)), (("<|x|>", "|>"), ()), (("<|x|>", "> "), ()), (("<|x|>", "y"), ("<|x|>",))],
)
def test_only_tokens_that_no_other_can_overlap_save(added: tuple[str, ...], saved: tuple[str, ...]) -> None:
    core = Tokenizer(models.BPE())
    core.add_tokens([AddedToken(text, normalized=False) for text in added])
    savings = FrameSavings.of(PreTrainedTokenizerFast(tokenizer_object=core), "<|x|>user\n")
    assert savings.texts == saved


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PromptCodec]:
    folder = make_folder(tmp_path_factory.mktemp("m") / "model", max_position_embeddings=4096)
    spec = run_spec(SPELL, model={"kind": "folder", "path": str(folder)}, data={"max_prompt_tokens": 4000})
    found = open_codec(spec, str(folder))
    assert isinstance(found, PromptCodec)
    return spec, found


@settings(deadline=None, max_examples=examples(150))
@given(
    TEXTS.filter(bool),
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXTS | st.just("<|im_end|>")), max_size=4),
)
def test_prompts_in_a_template_have_no_more_tokens_than_their_bound(
    codec: tuple[Any, PromptCodec], text: str, turns: list[tuple[str, str]]
) -> None:
    spec, opened = codec
    bound = bound_of(spec, opened)
    assert bound is not None
    messages = tuple(Message(role, content) for role, content in turns)
    prompt = Prompt(0, 0, "p", text, None, {}, (), messages)
    most = bound.most(prompt)
    made = len(opened.encode_prompt(prompt)) if most is not None else 0
    assert most is None or made <= most
    if text.isascii() and not messages and "<|" not in text:
        assert most == made, "without merges, bytes and special tokens are all there is"


def test_a_text_that_spells_a_special_token_is_encoded(codec: tuple[Any, PromptCodec]) -> None:
    bound = bound_of(*codec)
    assert bound is not None
    assert bound.most(Prompt(0, 0, "p", "say <|im_end|>", None, {})) is None
    assert bound.most(Prompt(0, 0, "p", "say it", None, {})) is not None


def test_a_codec_path_is_kept(tmp_path: Path) -> None:
    """Nothing is sure for a run whose rows are learnt from, since their responses are encoded too."""
    folder = make_folder(tmp_path / "model")
    spec = run_spec({"kind": "jsonl", "path": "rows.jsonl"}, model={"kind": "folder", "path": str(folder)},
                    objective={"kind": "sft"}, rewards={})  # fmt: skip
    assert bound_of(spec, open_codec(spec, str(folder))) is None
