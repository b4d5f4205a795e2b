"""Where images stand in a prompt: one placeholder token a patch, before the text or where the text says `<image>`.

Consumes a vision-language folder's config and tokenizer; produces the texts that hold the placeholders and the check that
they are as many as the images need. The engines put the patches' embeddings in the placeholders' stead, so that sampler
and trainer, which get the same tokens, see the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.tokenizer import IMAGE


@dataclass(frozen=True, slots=True)
class _Tower:
    """extra: outputs besides the patches. image_size, patch_size: what holds where the config is silent."""

    extra: int
    image_size: int
    patch_size: int


TOWERS = {"siglip_vision_model": _Tower(0, 224, 16), "clip_vision_model": _Tower(1, 224, 32)}
"""The vision towers that are known."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """text, token: the placeholder as text and as id. count: placeholders of one image."""

    text: str
    token: int
    count: int

    def marked(self, text: str, images: int) -> str:
        """The text with a mark for each image: those that are there, else all in front.

        Raises `DataError` when it has marks, but not as many as there are images.
        """
        marks = text.count(IMAGE)
        if marks not in (0, images):
            raise DataError(
                f"has {images} images, and {IMAGE} stands in it {marks} times; write it once an image, or nowhere"
            )
        return text if marks else IMAGE * images + text

    def plain(self, text: str) -> str:
        """A marked text with the model's own token for each mark."""
        return text.replace(IMAGE, self.text)

    def parts(self, text: str) -> list[dict[str, str]]:
        """A marked text as the content of a message, for chat templates that want images and texts apart."""
        parts: list[dict[str, str]] = []
        for number, piece in enumerate(text.split(IMAGE)):
            if number:
                parts.append({"type": "image"})
            if piece:
                parts.append({"type": "text", "text": piece})
        return parts

    def expanded(self, text: str) -> str:
        """A rendered prompt with as many placeholders for each of the model's tokens as an image has."""
        return text.replace(self.text, self.text * self.count)

    def check(self, tokens: Sequence[int], images: int) -> None:
        """Raises `DataError` when the placeholders among a prompt's tokens are not those of its images."""
        found = sum(token == self.token for token in tokens)
        if found != images * self.count:
            raise DataError(f"has {found} placeholders of images where {images} images need {images * self.count}")


def image_tokens(config: Mapping[str, Any], tokenizer: Any) -> ImageTokens | None:
    """How a model takes images; none for a model of text alone.

    config: its config.json. Raises `ConfigurationError` for a vision-language model of another family than LLaVA.
    """
    if "vision_config" not in config:
        return None
    vision = config["vision_config"]
    tower = vision.get("model_type", "clip_vision_model")
    if config.get("model_type") != "llava" or tower not in TOWERS:
        raise ConfigurationError(
            f"model: {config.get('model_type')} with {tower} is no vision-language model that is known; "
            f"known is llava with {' or '.join(TOWERS)}"
        )
    token = config.get("image_token_index", config.get("image_token_id"))
    text = None if token is None else tokenizer.convert_ids_to_tokens(token)
    if text is None:
        raise ConfigurationError(
            f"model: its tokenizer has no token {token}, which stands for images (image_token_index)"
        )
    first = config.get("vision_feature_select_strategy", "default") == "default"
    known = TOWERS[tower]
    patches = (vision.get("image_size", known.image_size) // vision.get("patch_size", known.patch_size)) ** 2
    return ImageTokens(str(text), int(token), patches + known.extra - int(first))
