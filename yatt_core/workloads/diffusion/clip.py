"""Images and prompts as vectors of CLIP (arXiv 2103.00020), with bits that depend on an image or a prompt alone.

Consumes a folder of transformers: config.json, preprocessor_config.json, safetensors and, for prompts, the tokenizer. Produces
unit vectors. All passes have the same number of rows, and texts the same number of tokens: what fills a batch up repeats its
last row and is cut off afterwards. Nothing executes code of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.loading import load_clip
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.regular_files import read_object

PREPROCESSOR = "preprocessor_config.json"
ROWS = 8
"""Rows of every pass."""
CHANNELS = 3
UNNAMED_END = 2
"""`eos_token_id` of a configuration that names no end: transformers then takes a text's vector at its greatest token, as the
first CLIP models need it."""


class ClipVectors:
    """A CLIP model, or its vision tower alone.

    folder: the model's.
    key: the spec key with which messages begin.

    Raises `ConfigurationError` for a folder that lacks a part.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key
        stated = read_object(folder / PREPROCESSOR, key)
        self._mean = self._of_channels(stated, "image_mean")
        self._deviation = self._of_channels(stated, "image_std")
        self._model: Any = load_clip(str(folder))
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            # Memory-mapped ones lie where they happen to lie, which changes the last bits.
            tensor.data = tensor.data.clone()
        config: Any = self._model.config
        self._texts: bool = config.model_type == "clip"
        self._side = int((config.vision_config if self._texts else config).image_size)

    @property
    def knows_texts(self) -> bool:
        """False for a vision tower alone."""
        return self._texts

    @torch.no_grad()
    def images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns unit vectors of images, [B, D], at least one.

        pixels: [B, height, width, 3], uint8. The middle square is resized to the model's size, bicubic with antialiasing.
        """
        return in_batches(self._images, pixels)

    @torch.no_grad()
    def prompts(self, prompts: Sequence[str]) -> torch.Tensor:
        """Returns unit vectors of prompts, [B, D], at least one.

        Raises `DataError` for a prompt that is too long for the model, and `ConfigurationError` for a tokenizer that ends texts
        where the model does not take their vectors.
        """
        longest = self._model.config.text_config.max_position_embeddings
        tokenizer = self._tokenizer
        rows = []
        for prompt in prompts:
            ids = tokenizer(prompt).input_ids
            if len(ids) > longest:
                raise DataError(f"prompt {prompt!r}: has {len(ids)} tokens; the CLIP model knows at most {longest}")
            if tokenizer.eos_token_id not in ids:
                raise ConfigurationError(
                    f"{self._key}: {self._folder}: its tokenizer adds no token for the end of a text"
                )
            if self._takes_greatest and max(ids) != tokenizer.eos_token_id:
                raise ConfigurationError(
                    f"{self._key}: {self._folder}: the model takes a text's vector at its greatest token, which is "
                    f"{max(ids)} for {prompt!r}; expected the tokenizer's token for the end, {tokenizer.eos_token_id}"
                )
            # Attention is causal and the vector is that of the first end token, so that what follows it changes nothing.
            rows.append(ids + [tokenizer.eos_token_id] * (longest - len(ids)))
        return in_batches(self._prompts, torch.tensor(rows, dtype=torch.int64))

    @property
    def _takes_greatest(self) -> bool:
        """Whether a text's vector is that of its greatest token, and not that of the token that the configuration names."""
        found: bool = self._model.config.text_config.eos_token_id == UNNAMED_END
        return found

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer, which only prompts need. Raises `ConfigurationError` if the model takes texts' vectors elsewhere than
        where it ends them.

        That would be at the first token, which is the same for all texts.
        """
        tokenizer: Any = load_tokenizer(self._folder)
        stated = self._model.config.text_config.eos_token_id
        if not self._takes_greatest and stated != tokenizer.eos_token_id:
            raise ConfigurationError(
                f"{self._key}: {self._folder}: config.json: text_config.eos_token_id: expected {tokenizer.eos_token_id}, the "
                f"token with which its tokenizer ends a text, or {UNNAMED_END} (given: {stated!r})"
            )
        return tokenizer

    def _images(self, pixels: torch.Tensor) -> torch.Tensor:
        images = pixels.permute(0, 3, 1, 2).float() / 255
        height, width = images.shape[-2:]
        least = min(height, width)
        top = (height - least) // 2
        left = (width - least) // 2
        square = images[..., top : top + least, left : left + least]
        size = (self._side, self._side)
        resized = interpolate(square, size, mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
        found = self._model.vision_model(pixel_values=(resized - self._mean) / self._deviation).pooler_output
        return unit(self._model.visual_projection(found))

    def _prompts(self, ids: torch.Tensor) -> torch.Tensor:
        found = self._model.text_model(input_ids=ids).pooler_output
        return unit(self._model.text_projection(found))

    def _of_channels(self, stated: dict[str, Any], name: str) -> torch.Tensor:
        """Returns three numbers of the preprocessor, [3, 1, 1]."""
        given = stated.get(name)
        if (
            not isinstance(given, list)
            or len(given) != CHANNELS
            or not all(isinstance(each, int | float) for each in given)
        ):
            raise ConfigurationError(
                f"{self._key}: {self._folder / PREPROCESSOR}: {name}: expected three numbers (given: {given!r})"
            )
        return torch.tensor(given, dtype=torch.float32).view(CHANNELS, 1, 1)


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Returns vectors, [B, D], with length 1."""
    lengths: torch.Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / lengths


def in_batches(compute: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Returns what is computed for rows, [B, ...], at least one, in passes of `ROWS` rows each."""
    parts = []
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        filled = part[torch.arange(ROWS).clamp(max=len(part) - 1)]
        parts.append(compute(filled)[: len(part)])
    return torch.cat(parts)
