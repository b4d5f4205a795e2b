"""Images of prompts: verified once, kept beside the prompts under their content address, checked whenever they are read.

Consumes the bytes of PNG and JPEG files; produces `media/AB/ABCDEF...` in the inputs' folder, named by the sha256 of the bytes
(which stay as they are), and what a manifest says of all of them. An address alone travels with a prompt.
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
"""A small file may unfold into any number of pixels; 64 million take 192 MB."""
MAX_BYTES = 3 * MAX_PIXELS
"""Of a file: no image that may be decoded needs more."""
MAX_ASPECT = 100
"""Longer over shorter side. Processors that fit the shorter side to the model's width enlarge the longer one as much."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each EXIF orientation. Pillow's `exif_transpose` would also write the other tags anew, and fails on wrong ones."""
_ADDRESS = re.compile(r"[0-9a-f]{64}")
_UNDECODABLE = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError,
    struct.error, zlib.error,
)  # fmt: skip
"""What Pillow raises for damaged files; a tag of the wrong type goes through its arithmetic as it is."""


def media_path(inputs_folder: Path, address: str) -> Path:
    """Where the file with this address lies. Raises `DataError` for what is no address."""
    if not _ADDRESS.fullmatch(address):
        raise DataError(f"{address!r} is no address of an image; 64 hexadecimal digits are")
    return inputs_folder / MEDIA / address[:2] / address


def read_media(inputs_folder: Path, address: str) -> bytes:
    """The bytes with this address, as they were given. Raises `DataError` where they are missing or damaged."""
    path = media_path(inputs_folder, address)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: the image cannot be read: {error.strerror}; put it back, or start a new run"
        ) from None
    if media_address(data) != address:
        raise DataError(f"{path}: the image is damaged; put it back, or start a new run")
    return data


def decode_media(data: bytes) -> Image.Image:
    """The image, turned upright as its EXIF says: RGB, 8 bits a channel, transparency dropped.

    Raises `DataError` for what is no PNG or JPEG file, is damaged, is larger than `MAX_BYTES` or `MAX_PIXELS`, thinner than
    `MAX_ASPECT`, or has more than 8 bits a channel.
    """
    if len(data) > MAX_BYTES:
        raise DataError(f"it has {len(data):,} bytes, at most {MAX_BYTES:,} are taken")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(f"{width} x {height} pixels are too many; at most {MAX_PIXELS:,} are decoded")
            if max(width, height) > MAX_ASPECT * min(width, height):
                raise DataError(
                    f"{width} x {height} pixels are too thin; one side is at most {MAX_ASPECT} times the other"
                )
            if _is_deep(image):
                raise DataError("it has 16 bits a channel; write 8")
            return _upright(image).convert("RGB")
    except UnidentifiedImageError:
        raise DataError(f"it is no {' or '.join(FORMATS)} file") from None
    except Image.DecompressionBombError as error:
        raise DataError(f"it has too many pixels: {error}") from None
    except _UNDECODABLE as error:
        raise DataError(f"it cannot be decoded: {error}") from None


def _is_deep(image: ImageFile.ImageFile) -> bool:
    """True for over 8 bits a channel, which only PNG has here; its mode tells that of grey alone, its raw mode of all."""
    return any(str(tile.args).endswith(";16B") for tile in image.tile)


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # what a PNG file says of itself may stand behind its pixels
    method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if method is None else image.transpose(method)


def media_address(data: bytes) -> str:
    """The content address of some bytes, decodable or not."""
    return hashlib.sha256(data).hexdigest()


def verified_address(data: bytes, place: str) -> str:
    """The address of an image that can be decoded; keeps nothing. Raises `DataError` that names the place."""
    _verify(data, place)
    return media_address(data)


def _verify(data: bytes, place: str) -> None:
    try:
        decode_media(data)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


class MediaFolder:
    """The images of inputs in the making, each written and synced once. The entries of the folders are the caller's to sync."""

    def __init__(self, inputs_folder: Path) -> None:
        self._folder = inputs_folder

    def keep(self, data: bytes, place: str) -> str:
        """Verifies and writes an image unless it is there, and returns its address. Raises `DataError` naming the place."""
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
    """Names of all files there, sorted; one folder of them at a time is in memory."""
    folder = inputs_folder / MEDIA
    for group in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield from sorted(path.name for path in group.iterdir())


def describe_media(inputs_folder: Path) -> dict[str, Any]:
    """What a manifest says of the images: how many there are, and the digest of their sorted addresses."""
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for address in stored_addresses(inputs_folder):
            count += 1
            yield address

    digest = chain_digest(counted())
    return {"images": count, "digest": digest}
