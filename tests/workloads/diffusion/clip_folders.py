"""Folders of minimal CLIP models, with a tokenizer of words, a preprocessor's settings and heads."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from yatt_core.models.loading import quiet_transformers
from yatt_core.workloads.diffusion.shapes import WORDS

VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8, "projection_dim": 12,
}  # fmt: skip
END = len(WORDS) + 2
"""The id of the token for the end of a text, which fills texts up too."""
MEAN = [0.48, 0.46, 0.41]
DEVIATION = [0.27, 0.26, 0.28]


def write_clip(
    folder: Path, seed: int = 1, ends: bool = True, stated_end: int = END, end_is_greatest: bool = True
) -> Path:
    """Writes a CLIP model whose tokenizer knows the words of the task of shapes.

    ends: whether the tokenizer adds the token for the end of a text.
    stated_end: what the configuration says of that token.
    end_is_greatest: whether it is the last one of the vocabulary, or comes before the words.
    """
    transformers = quiet_transformers()
    text = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16,
        "max_position_embeddings": 6, "projection_dim": 12, "bos_token_id": 1, "eos_token_id": stated_end, "pad_token_id": END,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=12)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        transformers.CLIPModel(config).save_pretrained(folder)
    write_preprocessor(folder)
    words = ("<unk>", "<begin>", *WORDS, "<end>") if end_is_greatest else ("<unk>", "<begin>", "<end>", *WORDS)
    places = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(places, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in ("<unk>", "<begin>", "<end>")])
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<begin> $A <end>", special_tokens=[("<begin>", places["<begin>"]), ("<end>", places["<end>"])]
        )
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<begin>", eos_token="<end>", unk_token="<unk>", pad_token="<end>"
    )
    wrapped.save_pretrained(folder)
    return folder


def write_tower(folder: Path, seed: int = 1) -> Path:
    """Writes a vision tower with its projection, and nothing of texts."""
    transformers = quiet_transformers()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**VISION))
    model.save_pretrained(folder)
    write_preprocessor(folder)
    return folder


def write_preprocessor(folder: Path) -> None:
    """Writes preprocessor_config.json."""
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": MEAN, "image_std": DEVIATION}))


def write_head(folder: Path, *widths: int, prefix: str = "layers.") -> dict[str, torch.Tensor]:
    """Writes a head whose layers lead from one width to the next; returns its tensors.

    As in LAION's predictor, the numbers of layers leave out those of layers without weights.
    """
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        tensors[f"{prefix}{2 * number}.weight"] = torch.randn(outputs, inputs, generator=generator)
        tensors[f"{prefix}{2 * number}.bias"] = torch.randn(outputs, generator=generator)
    save_file(tensors, folder / "head.safetensors")
    return tensors
