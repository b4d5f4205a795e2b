"""Writes an iteration's images under their content address, and defines the work on each: processing every byte.

The codec of all designs is the binary pixmap (PPM, P6): a header and raw pixels, so that the benchmark measures the
transport of bytes and no decompression.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]
SMALLEST_MB = 1
LARGEST_MB = 4
WIDTH = 640
PATCH = 64


@dataclass(frozen=True, slots=True)
class Look:
    """The record of reading images. digest: a sum over all patches, so that no byte can be left out."""

    images: int = 0
    size: int = 0
    digest: int = 0

    def __add__(self, other: Look) -> Look:
        return Look(self.images + other.images, self.size + other.size, (self.digest + other.digest) % 2**64)


@dataclass(frozen=True, slots=True)
class Packed:
    """N images in one buffer, one after the other. offsets: [N + 1]."""

    data: UInt8
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, images: Sequence[UInt8]) -> Packed:
        """Copies the images into one buffer."""
        sizes = [image.nbytes for image in images]
        return cls(np.concatenate(images), np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Packed]) -> Packed:
        """Copies several batches into one."""
        return cls.of([image for part in parts for image in part.images()])

    def part(self, start: int, stop: int) -> Packed:
        """Returns a view of the images from `start` up to, but not including, `stop`."""
        first = self.offsets[start]
        last = self.offsets[stop]
        return Packed(self.data[first:last], self.offsets[start : stop + 1] - first)

    def images(self) -> Iterator[UInt8]:
        """Yields views of the images, one after the other."""
        for start, stop in pairwise(self.offsets.tolist()):
            yield self.data[start:stop]


def make_images(folder: Path, payload_mb: int, seed: int) -> tuple[str, ...]:
    """Writes images of 1 to 4 MB (10^6 bytes) that add up to about the payload; returns their addresses in order.

    Existing files are kept.
    """
    noise = np.random.default_rng(seed)
    addresses = []
    left = payload_mb * 1_000_000
    while left > 0:
        size = int(noise.integers(SMALLEST_MB * 1_000_000, LARGEST_MB * 1_000_000))
        header = f"P6\n{WIDTH} {max(size // (3 * WIDTH), 1)}\n255\n".encode()
        data = header + noise.bytes(3 * WIDTH * max(size // (3 * WIDTH), 1))
        address = hashlib.sha256(data).hexdigest()
        if not _path(folder, address).exists():
            _path(folder, address).parent.mkdir(parents=True, exist_ok=True)
            _path(folder, address).write_bytes(data)
        addresses.append(address)
        left -= len(data)
    return tuple(addresses)


def read_image(folder: Path, address: str) -> UInt8:
    """Returns the file's bytes, checked against their address."""
    data = _path(folder, address).read_bytes()
    if hashlib.sha256(data).hexdigest() != address:
        raise ValueError(f"{_path(folder, address)} is damaged")
    return np.frombuffer(data, np.uint8)


def look_at(data: UInt8) -> Look:
    """Decodes a file and sums each patch of its pixels."""
    lines = bytes(data[:32]).split(b"\n", 3)
    width, height = map(int, lines[1].split())
    pixels = data[len(data) - 3 * width * height :]
    whole = len(pixels) // PATCH * PATCH
    patches = pixels[:whole].reshape(-1, PATCH).sum(1, dtype=np.uint32)
    weights = np.arange(1, len(patches) + 1, dtype=np.uint64)
    rest = int(pixels[whole:].sum(dtype=np.uint64))
    return Look(1, len(data), (int((patches * weights).sum(dtype=np.uint64)) + rest) % 2**64)


def batches(count: int, size: int) -> Iterator[range]:
    """Yields consecutive ranges of at most `size` indices, which together cover 0 to `count` - 1."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))


def _path(folder: Path, address: str) -> Path:
    return folder / address[:2] / address
