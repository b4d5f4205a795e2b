"""Loads the tokenizer of a local Hugging Face folder, or trains a small one on the prompts.

Training consumes the texts of prompts and answers; frequent phrases become single tokens, everything else is
split into characters. It produces a Hugging Face tokenizer folder (tokenizer.json, its configuration, a chat
template) that any version of `transformers` can read. Short token sequences make small models fast on small machines.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.model import TokenizerSpec

PAD, END, SEPARATOR, UNKNOWN = SPECIALS = ("<pad>", "<eos>", "<sep>", "<unk>")
PAD_ID, END_ID, SEPARATOR_ID, UNKNOWN_ID = range(4)
TOKENIZER_CONFIG = "tokenizer_config.json"
LENGTH_WARNING = "sequence-length-is-longer-than-the-specified-maximum"
"""The library's name for its warning about texts that exceed `model_max_length`."""
IMAGE = "<image>"
IMAGE_ID = 4
"""Represents a patch of an image in a prompt; only models with a vision tower have this token."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}<sep>{% elif "
    "message['role'] == 'assistant' %}<sep>{{ message['content'] }}<eos>{% else %}{{ message['content'] }}{% endif "
    "%}{% endfor %}{% if add_generation_prompt %}<sep>{% endif %}"
)

_UNIT = re.compile(r"\s?[^\W\d_]+|\s?\d+|\s?[^\w\s]+|_|\s")


def train_tokenizer(
    spec: TokenizerSpec,
    prompts: Iterable[str],
    others: Iterable[str],
    with_images: bool = False,
) -> Tokenizer:
    """Returns a tokenizer with phrases from the prompts, and characters from the prompts and the other texts.

    prompts: iterated over several times and never held in memory, so it must not be an iterator.

    Ids: `<pad>` 0, `<eos>` 1, `<sep>` 2, `<unk>` 3, with images `<image>` 4, then phrases, longest first, then
    characters in order of code point.
    """
    specials, dropped = ((*SPECIALS, IMAGE), IMAGE) if with_images else (SPECIALS, "")
    normalizer = normalizers.Lowercase() if spec.lowercase else normalizers.Sequence([])
    chosen = common_phrases(_Normalized(normalizer, prompts, dropped), spec.phrase_fraction)
    alphabet: set[str] = set()
    for text in _Normalized(normalizer, itertools.chain(prompts, others), dropped):
        alphabet.update(text)
    vocabulary = {token: index for index, token in enumerate((*specials, *chosen, *sorted(alphabet)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_split_pattern(chosen)), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Normalized:
    """Texts, normalised and with one string removed, computed anew on every pass over them."""

    normalizer: Any
    texts: Iterable[str]
    dropped: str

    def __iter__(self) -> Iterator[str]:
        return (self.normalizer.normalize_str(text.replace(self.dropped, "")) for text in self.texts)


def common_phrases(prompts: Iterable[str], share: float) -> list[str]:
    """Returns the longest sequences of common words, longest first.

    prompts: iterated over twice.
    share: a sequence must occur in at least this fraction of the prompts, and in at least two prompts. Common words
        are those that meet the same condition.

    Single letters and numbers are not words: answers consist of them and must stay spelled out.
    """
    count = 0
    occurrences = Counter[str]()
    for text in prompts:
        count += 1
        occurrences.update(set(_UNIT.findall(text)))
    least = max(2, share * count)
    common = {unit for unit, times in occurrences.items() if times >= least and _is_word(unit)}
    runs: Counter[str] = Counter()
    for text in prompts:
        grouped = itertools.groupby(_UNIT.findall(text), key=common.__contains__)
        runs.update({"".join(run) for is_common, run in grouped if is_common})
    chosen = (run for run, times in runs.items() if times >= least and len(run) > 1)
    return sorted(chosen, key=_longest_first)


def wrapped_tokenizer(tokenizer: Tokenizer, longest: int) -> Any:
    """Returns a trained tokenizer as a `transformers` tokenizer with its chat template.

    longest: the model's maximum sequence length in tokens.
    """
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        sep_token=SEPARATOR,
        unk_token=UNKNOWN,
        model_max_length=longest,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Writes a trained tokenizer as a Hugging Face folder.

    longest: as for `wrapped_tokenizer`.
    """
    wrapped_tokenizer(tokenizer, longest).save_pretrained(folder)
    path = folder / TOKENIZER_CONFIG
    written = json.loads(path.read_text(encoding="utf-8"))
    # The class that transformers 4 knows too; transformers 5 reads it as its own.
    written["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer of a local folder; it does not warn about long texts, whose length YATT checks itself.

    Raises `ConfigurationError` if it cannot be loaded.
    """
    try:
        if (folder / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises a bare Exception for a damaged file
        raise ConfigurationError(f"model: the tokenizer in {folder} cannot be loaded: {error}") from error
    tokenizer.deprecation_warnings[LENGTH_WARNING] = True  # as if it had been given already
    return tokenizer


def _longest_first(phrase: str) -> tuple[int, str]:
    return -len(phrase), phrase


def _is_word(unit: str) -> bool:
    bare = unit.strip()
    return not bare.isalnum() or (len(bare) > 1 and not bare.isdigit())


def _split_pattern(phrases: Sequence[str]) -> str:
    """Returns an Oniguruma pattern that matches one of the phrases between word boundaries, or else one character."""
    alternatives = []
    for phrase in phrases:
        before = r"(?<!\p{L})" if phrase[0].isalpha() else ""
        after = r"(?!\p{L})" if phrase[-1].isalpha() else ""
        alternatives.append(f"{before}{re.escape(phrase)}{after}")
    return "|".join((*alternatives, r"[\s\S]"))
