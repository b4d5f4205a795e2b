"""Tokenizers with more tokens than the model's embedding has rows, as in Gemma 3's text models: used, with a guard.

Consumes a tokenizer and the model's config.json. Produces the tokenizer, which refuses each text that makes a token without a
row by name. Only added tokens may lack a row, because ordinary ones can be made by any text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, DataError

ROWLESS = "but the model's embedding has only"
"""In every message about a text that makes a token without a row."""


def embedding_rows(config: Mapping[str, Any]) -> int | None:
    """Returns the number of rows of the embedding that a config.json names; None if it names none."""
    rows = setting_of(config, "vocab_size")
    return rows if type(rows) is int else None


def setting_of(config: Mapping[str, Any], key: str) -> Any:
    """Returns a setting of a config.json, or of the text model in it; None if it has none."""
    text = config.get("text_config")
    return config.get(key, text.get(key) if isinstance(text, Mapping) else None)


def within_rows(tokenizer: Any, config: Mapping[str, Any], folder: Path) -> Any:
    """Returns the tokenizer, guarded if it has tokens without a row.

    Raises `ConfigurationError` if ordinary tokens or the end of a sequence have none, as with a tokenizer of another model.
    """
    rows = embedding_rows(config)
    if rows is None or len(tokenizer) <= rows:
        return tokenizer
    added = {number for number in tokenizer.get_added_vocab().values() if number >= rows}
    if len(added) < len(tokenizer) - rows:
        raise ConfigurationError(
            f"model.path: {folder}: the tokenizer has {len(tokenizer)} tokens, but the model only {rows}; expected "
            "tokenizer and model of one folder"
        )
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id >= rows:
        raise ConfigurationError(
            f"model.path: {folder}: the end-of-sequence token {tokenizer.eos_token!r} is number {tokenizer.eos_token_id}, but "
            f"the model has {rows} rows, so that it can never be sampled; expected tokenizer and model of one folder"
        )
    return GuardedTokenizer(tokenizer, rows)


class GuardedTokenizer:
    """A tokenizer that refuses texts that make tokens from a number on; it is otherwise the given one.

    rows: the first number without a row.
    """

    def __init__(self, tokenizer: Any, rows: int) -> None:
        self._tokenizer = tokenizer
        self._rows = rows

    def __call__(self, *texts: Any, **options: Any) -> Any:
        """Encodes as the tokenizer does. Raises `DataError`, which names the token, for a text that makes one without a row."""
        made = self._tokenizer(*texts, **options)
        lists = made["input_ids"]
        for tokens in lists if lists and isinstance(lists[0], list) else [lists]:
            if (highest := max(tokens, default=0)) >= self._rows:
                name = self._tokenizer.convert_ids_to_tokens(highest)
                raise DataError(f"contains {name!r}, token {highest}, {ROWLESS} {self._rows} rows")
        return made

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
