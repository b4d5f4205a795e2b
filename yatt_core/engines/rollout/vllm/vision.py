"""Prompts that show images, for vLLM.

Imports vLLM. Consumes requests whose images are addresses in the run's inputs; produces vLLM's inputs, with prepared pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

from yatt_core.engines.images import ImageReader, text_alone
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.config_file import read_config
from yatt_core.models.image_placeholders import Placeholders, image_placeholders
from yatt_core.protocols.generation import GenerateRequest, Int32

Indices = npt.NDArray[np.int64]
MODALITY = "image"


class Pictures:
    """Prepares the prompts of requests to one engine.

    model_path: folder of the model and of its image processor's settings.
    inputs_folder: the run's inputs, which contain the images; None: the engine serves prompts without images.

    Raises `ConfigurationError` for a model whose images are not supported.
    """

    def __init__(self, model_path: str, inputs_folder: Path | None) -> None:
        self._reader = None
        self._placeholders = Placeholders(None, 0)
        if inputs_folder is not None and is_vision_model(model_path):
            self._reader = ImageReader(model_path, inputs_folder)
            self._placeholders = placeholders_of(model_path)

    def prompt(self, request: GenerateRequest, place: int, salt: str) -> dict[str, Any] | MultiModalInput:
        """Returns vLLM's input for a prompt of a request.

        salt: prompts share cached states only with those of the same salt.

        Raises `DataError` for images that do not match the prompt's placeholders or cannot be read.
        """
        tokens = request.prompts[place]
        name = f"prompt {place} of the decode batch"
        media = request.media[place] if request.media else ()
        if self._reader is None:
            if media:
                raise text_alone(name)
            return {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
        question = tokens if request.question_lengths is None else tokens[: request.question_lengths[place]]
        positions = np.flatnonzero(question == self._placeholders.token)
        needed = self._placeholders.count
        if len(positions) != len(media) * needed:
            raise DataError(
                f"{name} has {len(positions)} image placeholders, but its {len(media)} images need {needed} each"
            )
        if not media:
            return {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
        return shown_prompt(tokens, positions, self._reader.pixels(media), media, cache_salt=salt)


def is_vision_model(model_path: str) -> bool:
    """Returns whether the model in a folder takes images. Raises `ConfigurationError` if they are not supported."""
    return image_placeholders(read_config(Path(model_path))) is not None


def placeholders_of(model_path: str) -> Placeholders:
    """Returns the image placeholders of a vision-language model. Raises `ConfigurationError` for another model."""
    found = image_placeholders(read_config(Path(model_path)))
    if found is None or found.token is None:
        raise ConfigurationError(f"{model_path}: config.json names no image token (image_token_index)")
    return found


def shown_prompt(
    tokens: Int32, positions: Indices, pixels: torch.Tensor, names: Sequence[str], **options: str
) -> MultiModalInput:
    """Returns vLLM's input for a prompt with images.

    positions: of the placeholders, in the order of the images.
    pixels: [images, channels, height, width].
    names: one per image; equal images have equal names.
    """
    items = MultiModalKwargsItems.from_hf_inputs(
        {"pixel_values": pixels}, {"pixel_values": MultiModalFieldConfig.batched(MODALITY)}
    )
    ranges = [_range(own) for own in np.split(positions, len(names))]
    return mm_input(tokens.tolist(), items, {MODALITY: list(names)}, {MODALITY: ranges}, **options)


def _range(positions: Indices) -> PlaceholderRange:
    """Returns the range of an image's placeholders, which need not follow each other directly."""
    first = int(positions[0])
    length = int(positions[-1] - positions[0]) + 1
    if length == len(positions):
        return PlaceholderRange(first, length)
    embedded = torch.zeros(length, dtype=torch.bool)
    embedded[torch.from_numpy(positions - first)] = True
    return PlaceholderRange(first, length, embedded)
