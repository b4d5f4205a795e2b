"""The architecture of vision-language models in vLLM.

Imports vLLM, and of it a part that engines of text do not need. vLLM runs the modules of transformers with its own attention and
linear layers, so that tensors keep the names of the trainer's, and the package torchvision, of which there is no build for
CPUs, is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.inputs.engine import MultiModalInput
from vllm.model_executor.models.transformers import TransformersMultiModalForCausalLM
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

from yatt_core.engines.images import image_features
from yatt_core.engines.rollout.vllm.vision import MODALITY, placeholders_of, shown_prompt


class _Facts(BaseProcessingInfo):  # type: ignore[misc]
    """What vLLM asks before the first request."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Returns that prompts may show any number of images."""
        return {MODALITY: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the number of patches of an image."""
        return {MODALITY: placeholders_of(self.model_id).count}


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
        vision = self.info.get_hf_config().vision_config
        patches = placeholders_of(self.info.model_id).count
        count = mm_counts[MODALITY]
        pixels = torch.zeros(count, vision.num_channels, vision.image_size, vision.image_size)
        tokens = np.zeros(count * patches, np.int32)
        return shown_prompt(tokens, np.arange(len(tokens)), pixels, [str(image) for image in range(count)])

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
