"""Places images in a prompt: one placeholder token per patch, before the text or where the text contains `<image>`.

Consumes a vision-language folder's config and tokenizer. Produces the texts with the placeholders, and checks
that their number matches the images. The engines replace the placeholders with the embeddings of the patches, so
sampler and trainer, which receive the same tokens, see the same prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.image_placeholders import image_placeholders
from yatt_core.models.tokenizer import IMAGE
from yatt_core.prompts.prompt import Message


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The placeholders of images.

    text, token: the placeholder as text and as id.
    count: number of placeholders per image.
    """

    text: str
    token: int
    count: int

    def marked(self, turns: Sequence[Message], images: int) -> list[Message]:
        """Returns the messages with one mark per image, all before the first of the user if there are none.

        Raises `DataError` if the messages contain marks, but not one per image.
        """
        marks = sum(turn.content.count(IMAGE) for turn in turns if turn.role != "system")
        if marks not in (0, images):
            raise DataError(
                f"has {images} images, but contains {IMAGE} {marks} times; write it once per image, or not at all"
            )
        first = next(number for number, turn in enumerate(turns) if turn.role == "user")
        before = "" if marks else IMAGE * images
        turn = replace(turns[first], content=before + turns[first].content)
        return [*turns[:first], turn, *turns[first + 1 :]]

    def plain(self, text: str) -> str:
        """Returns a marked text in which the model's own token replaces each mark."""
        return text.replace(IMAGE, self.text)

    def parts(self, text: str) -> list[dict[str, str]]:
        """Returns a marked text as message content for chat templates that expect separate images and texts."""
        parts: list[dict[str, str]] = []
        for number, piece in enumerate(text.split(IMAGE)):
            if number:
                parts.append({"type": "image"})
            if piece:
                parts.append({"type": "text", "text": piece})
        return parts

    def expanded(self, text: str) -> str:
        """Returns a rendered prompt in which each image token is repeated once per placeholder of an image."""
        return text.replace(self.text, self.text * self.count)

    def check(self, tokens: Sequence[int], images: int) -> None:
        """Raises `DataError` if the number of placeholders in a prompt's tokens does not match its images."""
        found = sum(token == self.token for token in tokens)
        if found != images * self.count:
            raise DataError(f"has {found} image placeholders, but {images} images need {images * self.count}")


def image_tokens(config: Mapping[str, Any], tokenizer: Any) -> ImageTokens | None:
    """Returns the image placeholders of a model with their text; None for a text-only model.

    config: the model's config.json.

    Raises `ConfigurationError` as `image_placeholders` does, and for a tokenizer without the token.
    """
    if (found := image_placeholders(config)) is None:
        return None
    text = None if found.token is None else tokenizer.convert_ids_to_tokens(found.token)
    if found.token is None or text is None:
        raise ConfigurationError(
            f"model: its tokenizer has no token {found.token}, the image token (image_token_index)"
        )
    return ImageTokens(str(text), int(found.token), found.count)
