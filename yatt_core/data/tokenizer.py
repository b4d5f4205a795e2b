"""Tokenizers: loads that of a local Hugging Face folder, and trains a small one on the prompts.

A trained one consumes the texts of prompts and answers, makes common phrases one token each and all else characters, and
produces a Hugging Face tokenizer folder (tokenizer.json, its configuration, a chat template) that any `transformers` reads.
Short prompts make small models on small machines fast.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from yatt_core.errors import ConfigurationError
from yatt_core.spec.model import TokenizerSpec

PAD, END, SEPARATOR, UNKNOWN = SPECIALS = ("<pad>", "<eos>", "<sep>", "<unk>")
PAD_ID, END_ID, SEPARATOR_ID, UNKNOWN_ID = range(4)
IMAGE, IMAGE_ID = "<image>", 4
"""Stands for a patch of an image in a prompt; a token of models with a vision tower alone."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}<sep>"
    "{% elif message['role'] == 'assistant' %}<sep>{{ message['content'] }}<eos>"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<sep>{% endif %}"
)

_UNIT = re.compile(r"\s?[^\W\d_]+|\s?\d+|\s?[^\w\s]+|_|\s")


def train_tokenizer(
    spec: TokenizerSpec, prompts: Sequence[str], others: Iterable[str], with_images: bool = False
) -> Tokenizer:
    """A tokenizer whose phrases come from the prompts, and whose characters from the prompts and the other texts.

    Ids: `<pad>` 0, `<eos>` 1, `<sep>` 2, `<unk>` 3, with images `<image>` 4, then phrases, longest first, then characters in
    order of code point.
    """
    specials = (*SPECIALS, IMAGE) if with_images else SPECIALS
    if with_images:
        prompts = [text.replace(IMAGE, "") for text in prompts]
    normalizer = normalizers.Lowercase() if spec.lowercase else normalizers.Sequence([])
    normalized = [normalizer.normalize_str(text) for text in prompts]
    phrases = common_phrases(normalized, spec.phrase_share)
    alphabet = set().union(*normalized, *(normalizer.normalize_str(text) for text in others))
    vocabulary = {token: index for index, token in enumerate((*specials, *phrases, *sorted(alphabet)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_split_pattern(phrases)), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def common_phrases(prompts: Sequence[str], share: float) -> list[str]:
    """The longest runs of common words that occur in at least this share of the prompts, and in two; longest first.

    A common word occurs in that share of the prompts itself. Single letters and numbers count as no words: they are the
    stuff of answers, which have to stay spelled out.
    """
    least = max(2, share * len(prompts))
    prompt_units = [_UNIT.findall(text) for text in prompts]
    occurrences = Counter(unit for units in prompt_units for unit in set(units))
    common = {unit for unit, count in occurrences.items() if count >= least and _is_word(unit)}
    runs: Counter[str] = Counter()
    for units in prompt_units:
        grouped = itertools.groupby(units, key=common.__contains__)
        runs.update({"".join(run) for is_common, run in grouped if is_common})
    chosen = (run for run, count in runs.items() if count >= least and len(run) > 1)
    return sorted(chosen, key=lambda run: (-len(run), run))


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Writes the tokenizer as a Hugging Face folder. longest: tokens of the model's longest sequence."""
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
    wrapped.save_pretrained(folder)


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a local folder. Raises `ConfigurationError`."""
    try:
        if (folder / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises the bare class for a damaged file
        raise ConfigurationError(f"model: the tokenizer in {folder} cannot be loaded: {error}") from error


def _is_word(unit: str) -> bool:
    bare = unit.strip()
    return not bare.isalnum() or (len(bare) > 1 and not bare.isdigit())


def _split_pattern(phrases: Sequence[str]) -> str:
    """Pattern of the tokenizers library (Oniguruma) that takes a phrase where it stands alone, else one character."""
    alternatives = []
    for phrase in phrases:
        before = r"(?<!\p{L})" if phrase[0].isalpha() else ""
        after = r"(?!\p{L})" if phrase[-1].isalpha() else ""
        alternatives.append(f"{before}{re.escape(phrase)}{after}")
    return "|".join((*alternatives, r"[\s\S]"))
