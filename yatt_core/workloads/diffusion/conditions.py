"""What images are drawn for: prompts as vectors of words.

Consumes prompts as texts. Produces what a network of diffusers takes as the output of its text encoders: a vector for each
word, and one for the whole prompt. The table is frozen: it is the text encoder of a small model, kept beside the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import stable_seed
from yatt_core.regular_files import read_object

VOCABULARY = "vocabulary.json"
VECTORS = "words.safetensors"
LENGTH_OF_WORDS = 4.0
"""Length of a word's vector: large enough that a short pre-training learns to tell words apart."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What B images are drawn for.

    words: [B, L, D].
    pooled: [B, D].
    mask: [B, L], bool, False for what fills a shorter prompt up; for networks that know masks.
    guidance: [B], float32, for networks that have learnt guidance (arXiv 2210.03142) and are told how strong it is; None for
        others.
    """

    words: torch.Tensor
    pooled: torch.Tensor
    mask: torch.Tensor
    guidance: torch.Tensor | None = None

    def rows(self, chosen: slice | torch.Tensor) -> Conditions:
        """Returns those of some images."""
        return Conditions(
            words=self.words[chosen],
            pooled=self.pooled[chosen],
            mask=self.mask[chosen],
            guidance=None if self.guidance is None else self.guidance[chosen],
        )

    def to(self, dtype: torch.dtype) -> Conditions:
        """Returns them with vectors in a dtype."""
        return replace(self, words=self.words.to(dtype), pooled=self.pooled.to(dtype))

    def guided(self, guidance: float | None) -> Conditions:
        """Returns them with the guidance that the network is told; None for a network that knows none."""
        if guidance is None:
            return self
        return replace(self, guidance=torch.full((len(self.words),), guidance, device=self.words.device))


@dataclass(frozen=True, slots=True)
class WordTable:
    """A vector for each known word.

    words: V words, in the order of their vectors.
    vectors: [V, D], float32.
    longest: words of the longest prompt, L; shorter prompts end with zeros.
    """

    words: tuple[str, ...]
    vectors: torch.Tensor
    longest: int

    def encode(self, prompts: Sequence[str]) -> Conditions:
        """Returns what the prompts say; the pooled vector is the sum of the words'.

        Raises `DataError` for an unknown word, and for a prompt that is empty or too long.
        """
        places = {word: place for place, word in enumerate(self.words)}
        vectors = torch.zeros(len(prompts), self.longest, self.vectors.shape[1])
        mask = torch.zeros(len(prompts), self.longest, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            words = prompt.split()
            if not 0 < len(words) <= self.longest:
                raise DataError(f"prompt {prompt!r}: has {len(words)} words; expected 1 to {self.longest}")
            if unknown := [word for word in words if word not in places]:
                raise DataError(f"prompt {prompt!r}: unknown word {unknown[0]!r}; known: {', '.join(self.words)}")
            vectors[row, : len(words)] = self.vectors[[places[word] for word in words]]
            mask[row, : len(words)] = True
        return Conditions(vectors, vectors.sum(1), mask)


def make_words(words: Sequence[str], width: int, longest: int, seed: int) -> WordTable:
    """Returns a table of orthogonal vectors, as far as there are fewer words than numbers of a vector, of equal length.

    width: numbers of a vector. The same arguments always give the same table.
    """
    generator = torch.Generator().manual_seed(stable_seed("words", seed))
    vectors = torch.nn.init.orthogonal_(torch.empty(len(words), width), generator=generator)
    return WordTable(tuple(words), vectors * LENGTH_OF_WORDS, longest)


def save_words(table: WordTable, folder: Path) -> None:
    """Writes a table into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"words": table.words, "longest": table.longest}, indent=2, ensure_ascii=False)
    (folder / VOCABULARY).write_text(text + "\n", encoding="utf-8")
    save_file({"vectors": table.vectors}, folder / VECTORS)


def load_words(folder: Path) -> WordTable:
    """Returns the table in a folder. Raises `ConfigurationError` if there is none or its files do not fit together."""
    stated = read_object(folder / VOCABULARY, "words")
    words = stated.get("words")
    longest = stated.get("longest")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(longest, int):
        raise ConfigurationError(
            f"words: {folder / VOCABULARY}: expected `words`, a list of texts, and `longest`, a number"
        )
    try:
        vectors = load_file(folder / VECTORS).get("vectors")
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"words: {folder / VECTORS}: cannot be read: {error}") from None
    if vectors is None or vectors.dim() != 2 or len(vectors) != len(words):
        raise ConfigurationError(
            f"words: {folder / VECTORS}: expected `vectors` with a row for each of {len(words)} words"
        )
    return WordTable(tuple(words), vectors.to(torch.float32, copy=True), longest)
