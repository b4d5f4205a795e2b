"""Images in prompts: from content addresses to the embeddings that replace their placeholders.

Consumes tokens, addresses and a vision-language model of transformers; produces the embeddings of whole
prompts. Sampler and trainer share this code. Pixels live no longer than one call: they are read from the run's
inputs, decoded, run through the vision tower and dropped; requests, experience and logs hold only addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from yatt_core.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    # Not at run time: engines of text run without Pillow.
    from PIL.Image import Image

PASS_IMAGES = 16
"""Images per pass through the vision tower. The number is constant, so that the same kernels always run."""


class ImageReader:
    """Reads images and prepares them as configured in the model folder, using only Pillow and numpy."""

    def __init__(self, model_path: str, inputs_folder: Path) -> None:
        """Raises `ConfigurationError` for a folder without image processor settings."""
        from transformers import AutoImageProcessor

        self._inputs_folder = inputs_folder
        try:
            self._processor: Any = AutoImageProcessor.from_pretrained(
                model_path, backend="pil", local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, ImportError) as error:
            raise ConfigurationError(f"{model_path}: its image processor cannot be loaded: {error}") from error

    def pixels(self, addresses: Sequence[str]) -> torch.Tensor:
        """Returns prepared pixels, [images, channels, height, width] in float32.

        Raises `DataError` as `read_media` does, and for an address whose bytes cannot be decoded.
        """
        images = [self._decoded(address) for address in addresses]
        pixels: torch.Tensor = self._processor(images, return_tensors="pt")["pixel_values"]
        return pixels

    def _decoded(self, address: str) -> Image:
        from yatt_core.prompts.media import decode_media, read_media

        data = read_media(self._inputs_folder, address)
        try:
            return decode_media(data)
        except DataError as error:
            raise DataError(f"image {address} of the run's inputs: {error}") from error


def open_reader(model: nn.Module, model_path: str, inputs_folder: Path) -> ImageReader | None:
    """Opens the image reader of a vision-language model; returns None for a text-only model."""
    return ImageReader(model_path, inputs_folder) if hasattr(model.config, "vision_config") else None


@dataclass(frozen=True, slots=True)
class ShownPrompts:
    """Rows that begin with a prompt.

    lengths: [rows], tokens of each prompt.
    media: addresses of each prompt's images.
    names: one per row, for error messages.
    """

    lengths: torch.Tensor
    media: Sequence[Sequence[str]]
    names: Sequence[str]


def embed_prompts(
    model: nn.Module, reader: ImageReader | None, tokens: torch.Tensor, prompts: ShownPrompts
) -> torch.Tensor:
    """Embeds rows of tokens, with image patches in place of the prompts' placeholders: [rows, length, width].

    tokens: [rows, length]; a placeholder token after the prompt is an ordinary token.

    An image shared by several rows goes through the vision tower only once. Gradients flow through everything.
    Raises `DataError` for a row whose placeholders do not match its images, and as `read_media` does.
    """
    media = prompts.media
    if reader is None:
        raise text_alone(prompts.names[0])
    addresses = sorted(set(itertools.chain.from_iterable(media)))
    embeddings: torch.Tensor = model.get_input_embeddings()(tokens)  # type: ignore[operator]
    features = torch.cat([_features(model, pixels) for pixels in _read(reader, addresses)]) if addresses else None
    patches = 0 if features is None else features.shape[1]
    config: Any = model.config
    inside = torch.arange(tokens.shape[1], device=tokens.device) < prompts.lengths.to(tokens.device)[:, None]
    places = inside & (tokens == config.image_token_id)
    for name, found, images in zip(prompts.names, places.sum(dim=1).tolist(), media, strict=True):
        if found != len(images) * patches:
            raise DataError(f"{name} has {found} image placeholders, but its {len(images)} images need {patches} each")
    if features is None:
        return embeddings
    number = {address: index for index, address in enumerate(addresses)}
    shown = torch.tensor([number[address] for address in itertools.chain.from_iterable(media)], device=tokens.device)
    flat = embeddings.flatten(0, 1)
    filled = flat.index_copy(0, places.flatten().nonzero()[:, 0], features[shown].flatten(0, 1).to(flat.dtype))
    return filled.view_as(embeddings)


def text_alone(name: str) -> DataError:
    """Returns the error to raise for a prompt with images that is given to a model without a vision tower."""
    return DataError(f"{name} or another in its batch has images, but the model takes text only")


def image_features(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the projected patches of prepared images, [images, patches, width], in the bits of `embed_prompts`.

    pixels: [images, channels, height, width].
    """
    return torch.cat([_features(model, some) for some in torch.split(pixels, PASS_IMAGES)])


def _read(reader: ImageReader, addresses: Sequence[str]) -> Iterator[torch.Tensor]:
    """Yields the images' pixels in groups that go through the vision tower together."""
    for start in range(0, len(addresses), PASS_IMAGES):
        yield reader.pixels(addresses[start : start + PASS_IMAGES])


def _features(model: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the projected patches of some images, [images, patches, width].

    A pass always has `PASS_IMAGES` images and a filler at the end: a row's bits may depend on the shape of
    its tensor, and values at the end that do not fill a whole vector are computed by other code.
    """
    parameter = next(model.parameters())
    filler = pixels.new_zeros((PASS_IMAGES + 1 - len(pixels), *pixels.shape[1:]))
    full = torch.cat([pixels, filler]).to(parameter.device, parameter.dtype)
    outputs = model.get_image_features(pixel_values=full, return_dict=True).pooler_output  # type: ignore[operator]
    return torch.stack(list(outputs[: len(pixels)]))
