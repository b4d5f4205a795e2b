"""Images of prompts: verified once, stored alongside the prompts by content address, and checked on every read.

Consumes the bytes of PNG and JPEG files. Produces `media/AB/ABCDEF...` in the inputs' folder, named by the
SHA-256 of the unmodified bytes, and the manifest's entry about all images. A prompt carries only the addresses
of its images.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from yatt_core.digests import chain_digest
from yatt_core.durable import refusals
from yatt_core.errors import DataError

MEDIA = "media"
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 64_000_000
"""Maximum number of pixels: even a small file may decode to any number of pixels. 64 million take 192 MB."""
MAX_BYTES = 3 * MAX_PIXELS
"""Maximum size of a file; no image within the limit on pixels needs more."""
MAX_ASPECT = 100
"""Maximum ratio of the longer to the shorter side. Processors that scale the shorter side to the model's width
enlarge the longer one by the same factor."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that undoes each EXIF orientation. Pillow's `exif_transpose` would also rewrite the other
tags, and fails on invalid ones."""
_ADDRESS = re.compile(r"[0-9a-f]{64}")
_UNDECODABLE = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip
"""The exceptions that Pillow raises for damaged files; it does not validate the types of tags before it computes
with them."""


def media_path(inputs_folder: Path, address: str) -> Path:
    """Returns the path of the file with this address. Raises `DataError` for an invalid address."""
    if not _ADDRESS.fullmatch(address):
        raise DataError(f"{address!r} is not the address of an image; expected 64 hexadecimal digits")
    return inputs_folder / MEDIA / address[:2] / address


def read_media(inputs_folder: Path, address: str) -> bytes:
    """Returns the original bytes with this address. Raises `DataError` if they are missing or damaged."""
    path = media_path(inputs_folder, address)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the image cannot be read: {error.strerror}; restore it, or start a new run") from None
    if media_address(data) != address:
        raise DataError(f"{path}: the image is damaged; restore it, or start a new run")
    return data


def decode_media(data: bytes) -> Image.Image:
    """Returns the image in its EXIF orientation: RGB, 8 bits per channel, without transparency.

    Raises `DataError` if the data is not a PNG or JPEG file, is damaged, exceeds `MAX_BYTES`, `MAX_PIXELS` or
    `MAX_ASPECT`, or has more than 8 bits per channel.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"it has {len(data):,} bytes; the maximum is {MAX_BYTES:,}")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{width} x {height} pixels are too many; the maximum is {MAX_PIXELS:,}")
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise DataError(
                    f"{width} x {height} pixels are too elongated; one side may be at most {MAX_ASPECT} times the other"
                )
            if _is_deep(image):
                raise DataError("it has 16 bits per channel; expected 8")
            return _upright(image).convert("RGB")
    except UnidentifiedImageError:
        raise DataError(f"it is not a {' or '.join(FORMATS)} file") from None
    except Image.DecompressionBombError as error:
        raise DataError(f"it has too many pixels: {error}") from None
    except _UNDECODABLE as error:
        raise DataError(f"it cannot be decoded: {error}") from None


def _is_deep(image: ImageFile.ImageFile) -> bool:
    """Returns True for an image with more than 8 bits per channel, which can only be a PNG file.

    The image mode reveals this for greyscale images only; the raw mode reveals it for all.
    """
    return any(str(tile.args).endswith(";16B") for tile in image.tile)


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # a PNG file may store metadata after its pixels
    method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if method is None else image.transpose(method)


def media_address(data: bytes) -> str:
    """Returns the content address of any bytes, decodable or not."""
    return hashlib.sha256(data).hexdigest()


def verified_address(data: bytes, place: str) -> str:
    """Returns the address of an image after decoding it, without storing it.

    Raises `DataError`, which names the place.
    """
    _verify(data, place)
    return media_address(data)


def _verify(data: bytes, place: str) -> None:
    try:
        decode_media(data)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


class MediaFolder:
    """The images of inputs being built, each written and synced once; the caller syncs the folders' entries."""

    def __init__(self, inputs_folder: Path) -> None:
        self._folder = inputs_folder

    def keep(self, data: bytes, place: str) -> str:
        """Verifies and writes an image unless it exists, and returns its address.

        Raises `DataError`, which names the place.
        """
        address = media_address(data)
        path = media_path(self._folder, address)
        if path.exists():
            return address
        _verify(data, place)
        with refusals(f"{path}: {len(data)} bytes cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        return address


def stored_addresses(inputs_folder: Path) -> Iterator[str]:
    """Yields the sorted names of all stored files; only one subfolder at a time is held in memory."""
    folder = inputs_folder / MEDIA
    for group in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield from sorted(path.name for path in group.iterdir())


def describe_media(inputs_folder: Path) -> dict[str, Any]:
    """Returns the manifest's entry about the images: their number, and the digest of their sorted addresses."""
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for address in stored_addresses(inputs_folder):
            count += 1
            yield address

    digest = chain_digest(counted())
    return {"images": count, "digest": digest}
