"""How many placeholders an image has in a model's prompts, and which token they are; from the model's config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class _Tower:
    """A kind of vision tower.

    extra: number of outputs in addition to one per patch.
    image_size, patch_size: values that apply if the config has none.
    """

    extra: int
    image_size: int
    patch_size: int


TOWERS = {"siglip_vision_model": _Tower(0, 224, 16), "clip_vision_model": _Tower(1, 224, 32)}
"""The supported vision towers."""


@dataclass(frozen=True, slots=True)
class Placeholders:
    """The placeholders of images as ids: the token, and their number per image."""

    token: int | None
    count: int


def image_placeholders(config: Mapping[str, Any]) -> Placeholders | None:
    """Returns the image placeholders of a model; None for a text-only model.

    config: the model's config.json.

    Raises `ConfigurationError` for a vision-language model of a family other than LLaVA.
    """
    if "vision_config" not in config:
        return None
    vision = config["vision_config"]
    tower = vision.get("model_type", "clip_vision_model")
    if config.get("model_type") != "llava" or tower not in TOWERS:
        raise ConfigurationError(
            f"model: {config.get('model_type')} with {tower} is not a supported vision-language model; "
            f"expected llava with {' or '.join(TOWERS)}"
        )
    first = config.get("vision_feature_select_strategy", "default") == "default"
    known = TOWERS[tower]
    patches = (vision.get("image_size", known.image_size) // vision.get("patch_size", known.patch_size)) ** 2
    token = config.get("image_token_index", config.get("image_token_id"))
    return Placeholders(token, patches + known.extra - int(first))
