"""Model folders for the tests of checks before a start: a byte-level tokenizer, a small model, changes to its config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 256,
}  # fmt: skip


def make_folder(folder: Path, kind: str = "qwen2", more: tuple[str, ...] = (), spare: int = 0, **config: Any) -> Path:
    """Writes a model folder and returns it.

    kind: the model's type in transformers.
    more: added tokens after those of the template.
    spare: rows of the embedding beyond the tokens; negative: tokens without a row.
    config: further values of the model's config.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    core = byte_level(("<|im_start|>", "<|im_end|>", *more))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    made = AutoConfig.for_model(kind, **{**SIZES, "vocab_size": len(tokenizer) + spare, **config})
    AutoModelForCausalLM.from_config(made).save_pretrained(folder)
    return folder


def byte_level(special: Sequence[str], added: Sequence[str] = ()) -> Tokenizer:
    """Returns a tokenizer in which each byte is a token, and behind these the special and the added ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return core


def change_config(folder: Path, **values: Any) -> None:
    """Sets keys of a folder's config.json; None deletes one."""
    path = folder / "config.json"
    changed = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
