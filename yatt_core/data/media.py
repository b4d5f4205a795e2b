"""Images by content address: stored once below a run's inputs, read and decoded where they are used.

Consumes the bytes of image files; keeps each at `media/<first two hex digits>/<sha256>`; produces bytes that agree with
their address, and decoded pixels. Raises `DataError` for a file that is missing, damaged or no image.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from yatt_core.errors import DataError

MEDIA = "media"


def media_path(inputs_folder: Path, address: str) -> Path:
    """Where the bytes of an address lie."""
    return inputs_folder / MEDIA / address[:2] / address


def read_media(inputs_folder: Path, address: str) -> bytes:
    """The bytes of an address. Raises `DataError` for a file that is missing or does not have that sha256."""
    path = media_path(inputs_folder, address)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: an image of the run's inputs cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != address:
        raise DataError(f"{path}: an image of the run's inputs is damaged; put it back, or start a new run")
    return data


def decode_media(data: bytes) -> Image.Image:
    """The image in RGB. Raises `DataError` for bytes that are no image."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError, ValueError) as error:
        raise DataError(f"an image cannot be decoded: {error}") from None
