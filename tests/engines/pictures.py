"""A tiny vision-language model folder, an inputs folder with pictures, and prompts that show them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2Config,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
)

from yatt_core.prompts.media import media_path, read_media

VOCABULARY = 41
IMAGE_TOKEN = 40
"""The last token, so that the random prompts of other tests never contain it."""
PATCHES = 9


def make_vision_folder(folder: Path, seed: int = 0, hidden_size: int = 64, tower_heads: int = 3) -> Path:
    """Writes a model with 9 patches per image and widths that fill no whole number of vectors.

    Its next token is neither certain nor a coin toss.
    """
    torch.manual_seed(seed)
    tower = SiglipVisionConfig(
        hidden_size=36,
        intermediate_size=50,
        num_hidden_layers=2,
        num_attention_heads=tower_heads,
        image_size=18,
        patch_size=6,
        vision_use_head=False,
    )
    text = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=90,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    config = LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=IMAGE_TOKEN,
        image_seq_length=PATCHES,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    model: Any = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "language_model" not in name:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    SiglipImageProcessorPil(
        size={"height": 18, "width": 18}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(folder)
    return folder


def store_pictures(inputs_folder: Path, count: int, seed: int = 0) -> list[str]:
    """Stores pictures of noise, of various sizes, and returns their addresses."""
    noise = np.random.default_rng(seed)
    addresses = []
    for _ in range(count):
        shape = (*noise.integers(12, 40, 2), 3)
        stream = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, shape, dtype=np.uint8)).save(stream, "PNG")
        address = hashlib.sha256(stream.getvalue()).hexdigest()
        path = media_path(inputs_folder, address)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream.getvalue())
        addresses.append(address)
    return addresses


def prompt_with(images: int, length: int, seed: int) -> np.ndarray:
    """Returns a prompt of `length` words, with the placeholders of its images in a row after the first word."""
    words = np.random.default_rng(seed).integers(2, IMAGE_TOKEN, length)
    return np.concatenate([words[:1], np.full(images * PATCHES, IMAGE_TOKEN), words[1:]]).astype(np.int32)


def plain_logits(
    model: Any, folder: Path, inputs_folder: Path, tokens: Sequence[int], media: Sequence[str]
) -> torch.Tensor:
    """Computes one sequence's logits, [length, vocabulary], with transformers' own image processor and placement."""
    pixels = None
    if media:
        processor = SiglipImageProcessorPil.from_pretrained(folder)
        images = [Image.open(io.BytesIO(read_media(inputs_folder, address))).convert("RGB") for address in media]
        pixels = processor(images, return_tensors="pt")["pixel_values"]
    logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), pixel_values=pixels).logits[0]
    return logits
