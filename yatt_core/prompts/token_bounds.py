"""A sure upper bound on a text's number of tokens, from its bytes, for tokenizers whose parts show that it holds.

Consumes a tokenizer of the `tokenizers` library. Produces the bound of a text, or None where none is sure. The argument: an
added token covers at least one byte of the text; normalisation leaves the text as it is, which is verified; what
pre-tokenization makes of the rest has one symbol for each byte or character; and a model's tokens cover at least one symbol
each, because merges only join them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import pre_tokenizers

NEVER_LONGER_IF_ASCII = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})
"""Normalizers that give ASCII back with as many bytes."""
CLOSED = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers for which every part of a normalised text is normalised (Unicode Standard Annex 15)."""
CUTTING = frozenset({"Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"})
"""Pre-tokenizers that only cut a text, or drop parts of it."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    """The bound for one tokenizer.

    normalizer: of the `tokenizers` library; None if the text is taken as it is.
    kinds: names of the normalizer's parts.
    specials: tokens that are added around a text if it is encoded with special tokens.
    some: whether a text that is not empty surely has a token.
    """

    normalizer: Any
    kinds: frozenset[str]
    specials: int
    some: bool

    @classmethod
    def of(cls, tokenizer: Any) -> TokenBound | None:
        """Returns the bound of a `transformers` tokenizer; None if nothing is sure for it."""
        from transformers import PreTrainedTokenizerFast

        # Another class may encode in its own way; so does one that splits special tokens.
        if type(tokenizer) is not PreTrainedTokenizerFast or tokenizer.split_special_tokens:
            return None
        core = tokenizer.backend_tokenizer
        parts = json.loads(core.to_str())
        kinds = _parts(parts["normalizer"], "normalizers")
        if kinds is None or not frozenset(kinds) <= NEVER_LONGER_IF_ASCII:
            return None
        if not (_only_cuts(parts["pre_tokenizer"]) and _symbol_by_symbol(parts)):
            return None
        some = _has_all_bytes(parts) and _by_bytes(parts) and not _drops(parts)
        return cls(core.normalizer, frozenset(kinds), core.num_special_tokens_to_add(False), some)

    def most(self, text: str) -> int | None:
        """Returns the greatest number of tokens that a text can have without special tokens around it; None if unknown."""
        if not text.isascii() and self.kinds:
            if not self.kinds <= CLOSED or self.normalizer.normalize_str(text) != text:
                return None
            return len(text.encode())
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _parts(part: Mapping[str, Any] | None, key: str) -> list[str] | None:
    """Returns the kinds of a sequence's members, or of the only one; None for a member whose kind is not told."""
    if part is None:
        return []
    if part.get("type") != "Sequence":
        return [str(part.get("type"))]
    found: list[str] = []
    for member in part[key]:
        inner = _parts(member, key)
        if inner is None:
            return None
        found += inner
    return found


def _members(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for member in part["pretokenizers"]:
        yield from _members(member)


def _only_cuts(part: Mapping[str, Any] | None) -> bool:
    """Returns True if pre-tokenization adds no symbol; a byte-level one has a symbol for each byte."""
    return all(
        member["type"] in CUTTING or (member["type"] == "ByteLevel" and not member["add_prefix_space"])
        for member in _members(part)
    )


def _symbol_by_symbol(parts: Mapping[str, Any]) -> bool:
    """Returns True if the model makes at most one token of each symbol, before it joins any."""
    model = parts["model"]
    if model.get("type") == "WordLevel":
        return True
    if model.get("type") != "BPE":
        return False
    # A symbol of two bytes that stands for one byte would fall back to two tokens, unless it is in the vocabulary.
    return not (_by_bytes(parts) and model.get("byte_fallback")) or _has_all_bytes(parts)


def _by_bytes(parts: Mapping[str, Any]) -> bool:
    return any(member["type"] == "ByteLevel" for member in _members(parts["pre_tokenizer"]))


def _has_all_bytes(parts: Mapping[str, Any]) -> bool:
    return set(pre_tokenizers.ByteLevel.alphabet()) <= set(parts["model"]["vocab"])


def _drops(parts: Mapping[str, Any]) -> bool:
    """Returns True if pre-tokenization may drop a part of a text."""
    cuts = [member for member in _members(parts["pre_tokenizer"]) if member["type"] in CUTTING]
    return any(member.get("behavior") == "Removed" or member["type"].startswith("Whitespace") for member in cuts)


@dataclass(frozen=True, slots=True)
class FrameSavings:
    """What the special tokens of a template's frame save, because each is one token and not as many as its bytes.

    texts: special tokens of the frame, which no other added token can overlap.
    """

    texts: tuple[str, ...]

    @classmethod
    def of(cls, tokenizer: Any, frame: str) -> FrameSavings:
        """Returns the savings of a frame: a prompt in which all texts of others are replaced by plain ones."""
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        present = [token for token in added if token.content in frame]
        alone = [
            token.content
            for token in present
            if not (token.single_word or token.normalized or token.content != token.content.strip())
            and not any(_overlap(token.content, other.content) for other in added if other.content != token.content)
        ]
        return cls(tuple(alone))

    def counts(self, text: str) -> tuple[int, ...]:
        """Returns how often each of the tokens occurs."""
        return tuple(map(text.count, self.texts))

    def tokens(self, counts: Sequence[int]) -> int:
        """Returns how many tokens fewer than bytes so many occurrences make."""
        return sum(count * (len(text.encode()) - 1) for text, count in zip(self.texts, counts, strict=True))


def _overlap(one: str, other: str) -> bool:
    """Returns True if occurrences of two texts can share characters."""
    if one in other or other in one:
        return True
    shorter = min(len(one), len(other))
    return any(one[-size:] == other[:size] or other[-size:] == one[:size] for size in range(1, shorter))
