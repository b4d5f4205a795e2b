"""Compares the tokens that others get of an exported model with those that the run had.

Consumes an exported folder and texts of the run. Produces a sentence if they differ: transformers' AutoTokenizer, which vLLM
uses too, chooses a class by the kind of the model for some kinds, whatever the folder says, and that class ignores parts of
the folder's tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from yatt_core.models.loading import quiet_transformers
from yatt_core.models.tokenizer import load_tokenizer

CANNOT = (ValueError, OSError, LookupError, ImportError, AttributeError, TypeError, RuntimeError)
"""What the classes of transformers raise for files that do not suit them."""


def tokenizer_difference(folder: Path, texts: Sequence[str]) -> str | None:
    """Returns how AutoTokenizer differs from the run's tokenizer on texts; None if it gives the same tokens."""
    transformers = quiet_transformers()
    own = load_tokenizer(folder)
    try:
        other = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except CANNOT as error:
        return f"AutoTokenizer cannot read it: {type(error).__name__}: {str(error).strip():.300}"
    different = [text for text in texts if own(text)["input_ids"] != other(text)["input_ids"]]
    if not different:
        return None
    return (
        f"AutoTokenizer reads it as {type(other).__name__}, which gives other tokens than the run had for {len(different)} of "
        f"{len(texts)} of its prompts; load its tokenizer with PreTrainedTokenizerFast.from_pretrained"
    )
