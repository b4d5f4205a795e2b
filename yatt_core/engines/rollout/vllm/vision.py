"""Vision-language models in vLLM: their architecture, and prompts that show images.

Imports vLLM. Consumes requests whose images are addresses in the run's inputs; produces vLLM's inputs, with prepared pixels.
vLLM runs the modules of transformers with its own attention and linear layers, so that tensors keep the names of the trainer's,
and the package torchvision, of which there is no build for CPUs, is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.models.transformers import TransformersMultiModalForCausalLM
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from yatt_core.engines.images import ImageReader, image_features, text_alone
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.image_tokens import Placeholders, image_placeholders
from yatt_core.protocols.generation import GenerateRequest, Int32

Indices = npt.NDArray[np.int64]
MODALITY = "image"


class _Facts(BaseProcessingInfo):  # type: ignore[misc]
    """What vLLM asks before the first request."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Returns that prompts may show any number of images."""
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the number of patches of an image."""
        return {MODALITY: _placeholders(self.model_id).count}


class _NoDummies(BaseDummyInputsBuilder[_Facts]):  # type: ignore[misc]
    """Builds nothing: `_Prepared` makes inputs for measurements itself."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Returns no text."""
        return ""

    def get_dummy_mm_data(self, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        """Returns no images."""
        return {}


class _Prepared(BaseMultiModalProcessor[_Facts]):  # type: ignore[misc]
    """Leaves requests as they are, since `Pictures` prepares them."""

    requires_tokenizer = False

    def get_dummy_mm_inputs(self, mm_counts: Mapping[str, int], **_: Any) -> MultiModalInput:
        """Returns a prompt with blank images, with which vLLM measures the memory of the vision tower."""
        vision, patches = self.info.get_hf_config().vision_config, _placeholders(self.info.model_id).count
        count = mm_counts[MODALITY]
        pixels = torch.zeros(count, vision.num_channels, vision.image_size, vision.image_size)
        tokens = np.zeros(count * patches, np.int32)
        return _shown(tokens, np.arange(len(tokens)), pixels, [str(image) for image in range(count)])

    def _get_mm_fields_config(self, *_: Any) -> Mapping[str, MultiModalFieldConfig]:
        return {}

    def _get_prompt_updates(self, *_: Any) -> Sequence[Any]:
        return []


@MULTIMODAL_REGISTRY.register_processor(_Prepared, info=_Facts, dummy_inputs=_NoDummies)
class VisionLanguageModel(TransformersMultiModalForCausalLM):  # type: ignore[misc]
    """A model of transformers whose image patches replace placeholders of the prompt."""

    def embed_multimodal(self, **inputs: Any) -> list[torch.Tensor]:
        """Returns the projected patches of each image, [patches, width], computed as the torch engine does.

        pixel_values: images, each [channels, height, width], as a tensor or a list.
        """
        pixels = inputs["pixel_values"]
        return list(image_features(self.model, pixels if isinstance(pixels, torch.Tensor) else torch.stack(pixels)))


class Pictures:
    """Prepares the prompts of requests to one engine.

    model_path: folder of the model and of its image processor's settings.
    inputs_folder: the run's inputs, which contain the images; None: the engine serves prompts without images.

    Raises `ConfigurationError` for a model whose images are not supported.
    """

    def __init__(self, model_path: str, inputs_folder: Path | None) -> None:
        self._reader, self._placeholders = None, Placeholders(None, 0)
        if inputs_folder is not None and is_vision_model(model_path):
            self._reader, self._placeholders = ImageReader(model_path, inputs_folder), _placeholders(model_path)

    def prompt(self, request: GenerateRequest, place: int, salt: str) -> dict[str, Any] | MultiModalInput:
        """Returns vLLM's input for a prompt of a request.

        salt: prompts share cached states only with those of the same salt.

        Raises `DataError` for images that do not match the prompt's placeholders or cannot be read.
        """
        tokens, name = request.prompts[place], f"prompt {place} of the decode batch"
        media = request.media[place] if request.media else ()
        if self._reader is None:
            if media:
                raise text_alone(name)
            return {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
        question = tokens if request.question_lengths is None else tokens[: request.question_lengths[place]]
        positions, needed = np.flatnonzero(question == self._placeholders.token), self._placeholders.count
        if len(positions) != len(media) * needed:
            raise DataError(
                f"{name} has {len(positions)} image placeholders, but its {len(media)} images need {needed} each"
            )
        if not media:
            return {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
        return _shown(tokens, positions, self._reader.pixels(media), media, cache_salt=salt)


def is_vision_model(model_path: str) -> bool:
    """Returns whether the model in a folder takes images. Raises `ConfigurationError` if they are not supported."""
    return image_placeholders(_config(model_path)) is not None


def _placeholders(model_path: str) -> Placeholders:
    found = image_placeholders(_config(model_path))
    if found is None or found.token is None:
        raise ConfigurationError(f"{model_path}: config.json names no image token (image_token_index)")
    return found


def _config(model_path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    return found


def _shown(
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
    first, length = int(positions[0]), int(positions[-1] - positions[0]) + 1
    if length == len(positions):
        return PlaceholderRange(first, length)
    embedded = torch.zeros(length, dtype=torch.bool)
    embedded[torch.from_numpy(positions - first)] = True
    return PlaceholderRange(first, length, embedded)
