"""The images that a workload's samples are, as files for people: PNG, each named by the SHA-256 of its bytes.

Consumes the `Images` of each rank. Produces a folder within an iteration's prepared columns, so that it is kept and deleted with
them; its manifest, which is written last, says what each image is. Nothing is learnt from these files, and no digest of a result
depends on them.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from yatt_core.durable import make_folder, refusals, sync_folder
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.prepared import prepared_folder
from yatt_core.keys import WorkKey
from yatt_core.manifests import FileEntry, entry_of_bytes, load_manifest, publish_manifest, read_file, require_size
from yatt_core.workloads.columns import decode_columns, encode_columns
from yatt_core.workloads.contract import Array, Images
from yatt_core.workloads.listings import plain_text

IMAGES = "images"
"""The folder within the prepared columns, and the kind of its manifest."""
SUFFIX = ".png"
ADDRESS = re.compile(r"[0-9a-f]{64}")
LARGEST = 16_384
"""Most pixels of a side."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image of an iteration.

    address: the SHA-256 of its file.
    reward: None if it is not finite.
    """

    address: str
    caption: str
    reward: float | None
    seed: int


def image_file(address: str) -> str:
    """Returns the name of an image's file. Raises `DataError` for what is no address."""
    if not ADDRESS.fullmatch(address):
        raise DataError(f"{address!r:.80} is not the address of an image; expected 64 hexadecimal digits")
    return f"{address}{SUFFIX}"


def encode_images(images: Images, place: str) -> bytes:
    """Returns a rank's images as bytes, for the rank that writes them.

    place: what has returned them, for messages.

    Raises `ConfigurationError` unless they are as `Images` says.
    """
    _require_sound(images, place)
    files = [_png(image) for image in images.pixels]
    captions = json.dumps([plain_text(caption) for caption in images.captions]).encode()
    columns: dict[str, Array] = {
        "png": np.frombuffer(b"".join(files), np.uint8),
        "size": np.array([len(file) for file in files], np.int64),
        "caption": np.frombuffer(captions, np.uint8),
        "reward": images.rewards.astype(np.float64),
        "seed": images.seeds,
    }
    return encode_columns(columns, place)


def publish_images(run_folder: Path, key: WorkKey, term: int, contents: Sequence[bytes]) -> str:
    """Writes the images of all ranks or shards, in their order; returns the SHA-256 of the manifest.

    contents: what `encode_images` has returned for each.

    Raises `StorageFullError` or `InfrastructureError` if writing fails.
    """
    folder = run_folder / prepared_folder(key.branch, key.iteration, term) / IMAGES
    make_folder(folder)
    files: dict[str, FileEntry] = {}
    stored = []
    for data in contents:
        columns = decode_columns(data, "the images of a rank")
        captions = json.loads(columns["caption"].tobytes())
        ends = np.cumsum(columns["size"])
        for number, png in enumerate(np.split(columns["png"], ends[:-1]) if len(ends) else ()):
            entry = entry_of_bytes(png.tobytes())
            name = image_file(entry.sha256)
            if name not in files:
                _write(folder / name, png.tobytes())
                files[name] = entry
            reward = float(columns["reward"][number])
            stored.append(
                StoredImage(
                    address=entry.sha256,
                    caption=captions[number],
                    reward=reward if math.isfinite(reward) else None,
                    seed=int(columns["seed"][number]),
                )
            )
    sync_folder(folder)
    fields = {"key": asdict(key), "term": term, "images": [asdict(image) for image in stored]}
    return publish_manifest(folder, IMAGES, fields, files)


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The images of an iteration, opened.

    images: what they are, in the order of the samples.
    """

    images: tuple[StoredImage, ...]
    _folder: Path
    _files: Mapping[str, FileEntry]

    @classmethod
    def open(cls, prepared: Path, sha256: str) -> ImageFolder:
        """Reads the manifest.

        prepared: the folder of the prepared columns.
        sha256: of the manifest, from the receipt.

        Raises `DataError` if it is missing or another one.
        """
        folder = prepared / IMAGES
        manifest = load_manifest(folder, IMAGES, sha256)
        return cls(tuple(StoredImage(**image) for image in manifest.fields["images"]), folder, manifest.files)

    def read(self, address: str) -> bytes:
        """Returns the PNG file of an image. Raises `DataError` for one that is not there, and for a damaged file."""
        name = image_file(address)
        if name not in self._files:
            raise DataError(f"{self._folder}: has no image {address}")
        return read_file(self._folder, name, self._files[name])


def images_are_there(prepared: Path, sha256: str) -> bool:
    """Returns whether the images of an iteration are there: the manifest as it was, and every file with its size.

    prepared: the folder of the prepared columns.
    sha256: of the manifest, from the receipt.
    """
    folder = prepared / IMAGES
    try:
        for name, entry in load_manifest(folder, IMAGES, sha256).files.items():
            require_size(folder / name, entry)
    except DataError:
        return False
    return True


def _require_sound(images: Images, place: str) -> None:
    """Raises `ConfigurationError` unless a workload has returned `Images` whose parts fit together."""
    if not isinstance(images, Images):
        raise ConfigurationError(f"{place} returned {type(images).__name__}; expected Images of the contract")
    pixels = images.pixels
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3:
        found = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ConfigurationError(f"{place}: pixels are {found}; expected uint8 [N, height, width, 3]")
    if len(pixels) and not all(0 < side <= LARGEST for side in pixels.shape[1:3]):
        raise ConfigurationError(
            f"{place}: images have {pixels.shape[1]} x {pixels.shape[2]} pixels; expected sides of 1 to {LARGEST}"
        )
    for name, numbers in {"rewards": images.rewards, "seeds": images.seeds}.items():
        if not isinstance(numbers, np.ndarray) or numbers.ndim != 1:
            found = f"of shape {list(numbers.shape)}" if isinstance(numbers, np.ndarray) else type(numbers).__name__
            raise ConfigurationError(f"{place}: {name} are {found}; expected a numpy array [N]")
    if not isinstance(images.captions, Sequence) or isinstance(images.captions, str):
        raise ConfigurationError(f"{place}: captions are {type(images.captions).__name__}; expected a list of texts")
    counts = {"captions": len(images.captions), "rewards": len(images.rewards), "seeds": len(images.seeds)}
    for name, count in counts.items():
        if count != len(pixels):
            raise ConfigurationError(f"{place}: there are {count} {name} of {len(pixels)} images; expected one each")
    if not all(isinstance(caption, str) for caption in images.captions):
        raise ConfigurationError(f"{place}: a caption is no text; expected texts")
    if images.rewards.dtype.kind not in "biuf" or images.seeds.dtype.kind not in "iu":
        raise ConfigurationError(f"{place}: expected numbers as rewards, and integers as seeds")


def _png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """Returns a PNG file without metadata, so that the pixels and the library alone decide its bytes."""
    target = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(target, "PNG", compress_level=6)
    return target.getvalue()


def _write(path: Path, data: bytes) -> None:
    """Writes a file durably in a folder without a manifest yet, which the caller syncs; what a kill has left is replaced."""
    with refusals(f"{path}: {len(data)} bytes cannot be written"), path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
