"""Model folders of ten families: a byte-level tokenizer with the family's control tokens, and its chat template.

The templates are those in TRL's wheel, in the environment of the peers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from tests.models.folders import byte_level

PEERS = Path(__file__).parents[2] / "build" / "peers"


@dataclass(frozen=True, slots=True)
class Family:
    """The control tokens of a family.

    special, added: special tokens, and added ones that are not special.
    eos, stops: the end-of-sequence token, and all that end a response.
    """

    special: tuple[str, ...]
    eos: str
    stops: tuple[str, ...]
    bos: str | None = None
    added: tuple[str, ...] = ()


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALLS = ("<tool_call>", "</tool_call>")
THOUGHTS = ("<think>", "</think>")
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
HARMONY = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
)
GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
PHI = ("<s>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
FAMILIES = {
    "qwen2_5": Family(CHATML, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), added=CALLS),
    "qwen3": Family(CHATML, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), added=(*CALLS, *THOUGHTS)),
    "qwen3_5_think": Family(CHATML, "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), added=(*CALLS, *THOUGHTS)),
    "llama3": Family(LLAMA, "<|eot_id|>", ("<|eot_id|>", "<|end_of_text|>"), bos="<|begin_of_text|>"),
    "gemma3": Family(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", ("<eos>", "<end_of_turn>"), bos="<bos>"
    ),
    "deepseekv3": Family(DEEPSEEK, DEEPSEEK[1], DEEPSEEK[1:2], bos=DEEPSEEK[0], added=THOUGHTS),
    "deepseek_r1_distill": Family(DEEPSEEK, DEEPSEEK[1], DEEPSEEK[1:2], bos=DEEPSEEK[0], added=THOUGHTS),
    "gptoss": Family(HARMONY, "<|return|>", ("<|return|>", "<|endoftext|>", "<|call|>"), bos="<|startoftext|>"),
    "glm4moe": Family(
        GLM, "<|endoftext|>", ("<|endoftext|>", "<|user|>", "<|observation|>"), added=(*CALLS, *THOUGHTS)
    ),
    "phi3": Family(PHI, "<|endoftext|>", ("<|endoftext|>", "<|assistant|>", "<|end|>"), bos="<s>"),
}


def template_of(name: str) -> str:
    """Returns a family's chat template as TRL ships it."""
    (folder,) = PEERS.glob("lib/python*/site-packages/trl/chat_templates")
    return (folder / f"{name}.jinja").read_text(encoding="utf-8")


def make_folder(folder: Path, family: Family, template: str) -> Path:
    """Writes a folder that a codec can be opened on; it has no weights."""
    core = byte_level(family.special, family.added)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=family.eos, bos_token=family.bos)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    stops = [tokenizer.convert_tokens_to_ids(text) for text in family.stops]
    config = {"model_type": "qwen2", "vocab_size": len(tokenizer), "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return folder


FAMILIES_WITH_TOOLS = {
    **{name: FAMILIES[name] for name in ("qwen2_5", "qwen3", "qwen3_5_think", "deepseekv3", "gptoss", "glm4moe")},
    "llama3_1": Family(
        (*LLAMA, "<|python_tag|>", "<|eom_id|>"), "<|eot_id|>", ("<|eot_id|>",), bos="<|begin_of_text|>"
    ),
    "gemma4_v5": Family(
        (
            "<bos>",
            "<eos>",
            "<|turn>",
            "<turn|>",
            "<|channel>",
            "<channel|>",
            "<|think|>",
            "<|tool>",
            "<tool|>",
            "<|tool_call>",
            "<tool_call|>",
            "<|tool_response>",
            "<tool_response|>",
            '<|"|>',
        ),
        "<eos>",
        ("<eos>", "<turn|>", "<|tool_response>"),
        bos="<bos>",
    ),
}
"""Families whose templates write calls of tools."""
