"""Files of tensor parts: safetensors whose headers say where in the whole tensor each part lies.

Consumes the parts that a rank contributes; produces a file, hashed as it is written, and reads any rectangle of a
tensor from the files of all ranks, touching only the bytes of the rectangle. torch.distributed.checkpoint's
`HuggingFaceStorageReader` reads the same folders. A file without parts' places, such as one of another program,
holds whole tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from yatt_core import durable
from yatt_core.digests import WeightsDigest
from yatt_core.errors import DataError
from yatt_core.manifests import FileEntry, entry_of_bytes
from yatt_core.progress import advanced
from yatt_core.wire.part_index import SUFFIX as INDEX_SUFFIX
from yatt_core.wire.part_index import IndexBuilder, Span
from yatt_core.wire.parts import Box, Sizes, TensorPart, whole_box

Array = npt.NDArray[Any]

SUFFIX = ".safetensors"
PLACES = "DCP_SHARDING_INFO"
OFFSETS = "saved_offsets"
SHAPE = "shape"
"""Keys of the header's metadata, as torch.distributed.checkpoint spells them; it ignores the whole tensor's shape."""
TYPES = {
    "BOOL": "|b1",
    "U8": "|u1",
    "I8": "|i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
"""Numpy's types of safetensors' types. Numpy has no bfloat16: its bits are read as integers."""
NAMES = {np.dtype(spelled): name for name, spelled in TYPES.items() if name != "BF16"}
BLOCK_BYTES = 16 << 20
"""What is hashed and written, or read and hashed, at a time."""
ALIGNMENT = 8
HEADER_LIMIT = 100 << 20
HELD = ".held"
"""What follows the name of a file that is not complete in the name of the list of its readable spans."""


def write_parts(
    path: Path, parts: Sequence[TensorPart[Array]], index: IndexBuilder | None = None, name: str = ""
) -> FileEntry:
    """Writes a file of parts, no two of the same tensor, and syncs it; returns its size and sha256.

    index: what learns about the file; None if nothing does.
    name: the file's name in the index.
    """
    header = dict[str, Any]()
    at = 0
    for part in parts:
        size = int(part.values.nbytes)
        kind = NAMES[part.values.dtype.newbyteorder("<")]
        header[part.name] = {"dtype": kind, "shape": list(part.sizes), "data_offsets": [at, at + size]}
        at += size
    assert len(header) == len(parts), "a file has one part of a tensor at most"
    places = {part.name: {OFFSETS: list(part.offsets), SHAPE: list(part.shape)} for part in parts}
    header["__metadata__"] = {"format": "pt", "DCP_VERSION": "1.0", PLACES: json.dumps(places)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as stream:

        def write(data: memoryview) -> None:
            nonlocal size
            for start in range(0, len(data), BLOCK_BYTES):
                block = data[start : start + BLOCK_BYTES]
                digest.update(block)
                size += stream.write(block)

        write(memoryview(len(text).to_bytes(8, "little") + text))
        if index is not None:
            index.begin(name, text)
        for part in parts:
            values = part.values.astype(part.values.dtype.newbyteorder("<"), copy=False)
            data = _bytes_of(np.ascontiguousarray(values))
            write(data)
            if index is not None:
                index.add(name, data)
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(size, digest.hexdigest())


def write_tensors(
    folder: Path, rank: int, ranks: int, tensors: Mapping[str, Sequence[TensorPart[Array]]], label: str = ""
) -> dict[str, FileEntry]:
    """Writes a rank's parts below a folder; returns size and sha256 of each file, by its name relative to the folder.

    The files' index comes last; there is none if the rank has no parts.

    tensors: parts by subfolder. Of a tensor with several parts, all but the first are in files of their own, since a
        header has one place for each tensor.
    label: part of the files' names.
    """
    stem = f"rank-{rank:05d}-of-{ranks:05d}{label}"
    entries: dict[str, FileEntry] = {}
    index = IndexBuilder()
    for subfolder, parts in tensors.items():
        files: list[dict[str, TensorPart[Array]]] = []
        for part in parts:
            free = next((file for file in files if part.name not in file), None)
            if free is None:
                files.append(free := {})
            free[part.name] = part
        for number, file in enumerate(files):
            name = f"{subfolder}/{stem}{f'.{number}' if number else ''}{SUFFIX}"
            (folder / subfolder).mkdir(exist_ok=True)
            entries[name] = write_parts(folder / name, list(file.values()), index, name)
    if entries:
        data = index.encode()
        name = f"{stem}{INDEX_SUFFIX}"
        durable.write_file(folder / name, data)
        entries[name] = entry_of_bytes(data)
    return entries


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part in a file.

    shape: shape of the whole tensor.
    kind: its type, as safetensors spells it.
    start: index of its first byte in the file.
    held: the spans of the file that may be read; None if all of it may.
    """

    path: Path
    name: str
    shape: Sizes
    box: Box
    kind: str
    start: int
    held: tuple[Span, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.box.sizes) * np.dtype(TYPES[self.kind]).itemsize

    def spans(self, box: Box) -> Iterator[Span]:
        """Yields the spans of the file that hold a rectangle of the part."""
        sizes = self.box.sizes or (1,)
        taken = box.sizes or (1,)
        origin = tuple(own - base for own, base in zip(box.offsets, self.box.offsets, strict=True)) or (0,)
        depth = next(
            (place for place in range(len(sizes) - 1) if taken[place + 1 :] == sizes[place + 1 :]), len(sizes) - 1
        )
        width = np.dtype(TYPES[self.kind]).itemsize
        strides = [prod(sizes[place + 1 :]) * width for place in range(len(sizes))]
        first = self.start + sum(start * stride for start, stride in zip(origin, strides, strict=True))
        length = prod(taken[depth:]) * width
        for numbers in product(*(range(count) for count in taken[:depth])):
            at = first + sum(number * stride for number, stride in zip(numbers, strides, strict=False))
            yield at, at + length


def stored_parts(path: Path) -> Iterator[StoredPart]:
    """Yields the parts of a file. Raises `DataError` if its header cannot be read or does not fit the file."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= HEADER_LIMIT else b""
        header = json.loads(text)
        metadata = header.pop("__metadata__", {})
        places = json.loads(metadata[PLACES]) if PLACES in metadata else {}
        begin = 8 + length
        size = path.stat().st_size
        held = _held(path)
        for name, entry in header.items():
            sizes = tuple(int(number) for number in entry["shape"])
            place = places.get(name, {OFFSETS: [0] * len(sizes), SHAPE: list(sizes)})
            first, last = entry["data_offsets"]
            box = Box(tuple(place[OFFSETS]), sizes)
            shape = tuple(place[SHAPE])
            needed = prod(sizes) * np.dtype(TYPES[entry["dtype"]]).itemsize
            inside = all(end <= whole for end, whole in zip(box.ends, shape, strict=True))
            if last - first != needed or begin + last > size or not inside:
                raise DataError(f"{path}: its header does not match its contents at {name}")
            yield StoredPart(
                path=path, name=name, shape=shape, box=box, kind=entry["dtype"], start=begin + first, held=held
            )
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: is not a safetensors file: {error!r}") from error


class TensorSource(Protocol):
    """Tensors that are read as blocks of rows, such as those of `PartFiles`; bfloat16 as integers.

    shapes: their shapes, by name.
    kinds: their types, as safetensors spells them.
    """

    @property
    def shapes(self) -> Mapping[str, Sizes]: ...
    @property
    def kinds(self) -> Mapping[str, str]: ...
    def blocks(self, name: str) -> Iterator[Array]: ...


def hold(path: Path, spans: Iterable[Span]) -> None:
    """Notes which spans of a file that is not complete have been fetched and verified; others cannot be read."""
    path.with_name(path.name + HELD).write_text(json.dumps(list(spans)))


def _held(path: Path) -> tuple[Span, ...] | None:
    try:
        return tuple((first, last) for first, last in json.loads(path.with_name(path.name + HELD).read_bytes()))
    except FileNotFoundError:
        return None


class PartFiles:
    """The tensors in files of parts, read rectangle by rectangle.

    shapes: shapes of the whole tensors, by name.
    kinds: their types, as safetensors spells them.
    bytes_read: bytes of tensors that were read so far.
    """

    def __init__(self, paths: Iterable[Path] = (), parts: Iterable[StoredPart] = ()) -> None:
        """Reads the files' headers. Raises `DataError` if a file is unreadable or files contradict each other.

        parts: parts whose headers are known; their files are opened only when they are read.
        """
        self._parts: dict[str, list[StoredPart]] = {}
        for part in chain(parts, *(stored_parts(path) for path in paths)):
            self._parts.setdefault(part.name, []).append(part)
        self.bytes_read = 0
        self.shapes = {name: same[0].shape for name, same in self._parts.items()}
        self.kinds = {name: same[0].kind for name, same in self._parts.items()}
        for name, same in self._parts.items():
            if odd := [p for p in same if (p.shape, p.kind) != (self.shapes[name], self.kinds[name])]:
                raise DataError(f"{odd[0].path}: has another shape or type of {name} than {same[0].path}")

    def require_whole(self) -> None:
        """Raises `DataError` unless the parts of each tensor make it up, each number once."""
        for name, parts in self._parts.items():
            count = sum(prod(part.box.sizes) for part in parts)
            if count != prod(self.shapes[name]):
                raise DataError(
                    f"{parts[0].path}: the parts of {name} have {count} of {prod(self.shapes[name])} numbers"
                )
            if len({part.box.offsets for part in parts}) != len(parts):
                raise DataError(f"{parts[-1].path}: has numbers of {name} that another file has too")

    def nbytes(self, name: str) -> int:
        """Returns the size of a whole tensor in bytes."""
        return prod(self.shapes[name]) * np.dtype(TYPES[self.kinds[name]]).itemsize

    def read(self, name: str, box: Box | None = None) -> Array:
        """Reads a rectangle of a tensor, by default all of it; bfloat16 as integers.

        Raises `DataError` for a missing tensor, or one of which a part is missing.
        """
        overlaps = list(self.overlaps(name, box))
        box = box or whole_box(self.shapes[name])
        found = np.empty(box.sizes, dtype=TYPES[self.kinds[name]])
        missing = prod(box.sizes)
        for part, common in overlaps:
            own: tuple[Any, ...] = (*common.slices(box.offsets), ...)  # the dots keep a scalar an array
            _fill(found[own], part, common)
            missing -= prod(common.sizes)
        if missing:
            raise DataError(f"{self._parts[name][0].path.parent}: a part of {name} is missing")
        self.bytes_read += found.nbytes
        advanced()
        return found

    def overlaps(self, name: str, box: Box | None = None) -> Iterator[tuple[StoredPart, Box]]:
        """Yields the parts that hold numbers of a rectangle of a tensor, by default of all of it, and which they hold.

        Raises `DataError` for a missing tensor.
        """
        if name not in self._parts:
            raise DataError(f"the checkpoint has no tensor {name}")
        for part in self._parts[name]:
            if (common := part.box.within(box or whole_box(self.shapes[name]))) is not None:
                yield part, common

    def blocks(self, name: str) -> Iterator[Array]:
        """Reads a tensor as blocks of rows, so that only a block of it is in memory."""
        shape = self.shapes[name]
        if not shape or not prod(shape):
            yield self.read(name)
            return
        rows = max(1, BLOCK_BYTES * shape[0] // self.nbytes(name))
        for first in range(0, shape[0], rows):
            sizes = (min(rows, shape[0] - first), *shape[1:])
            yield self.read(name, Box((first, *(0 for _ in shape[1:])), sizes))

    def digest(self) -> str:
        """Returns the `weights_digest` of all tensors, reading block by block."""
        return digest_of(self)


def digest_of(source: TensorSource) -> str:
    """Returns the `weights_digest` of all tensors of a source, block by block."""
    found = WeightsDigest()
    for name in sorted(source.shapes):
        kind = source.kinds[name]
        spelled = "bfloat16" if kind == "BF16" else np.dtype(TYPES[kind]).name
        found.begin(name, spelled, source.shapes[name])
        for block in source.blocks(name):
            found.add(block)
    return found.hexdigest()


def files_of_parts(folder: Path) -> list[Path]:
    """Returns all files of parts in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def _fill(target: Array, part: StoredPart, box: Box) -> None:
    """Reads a rectangle of a part into an array, in runs that are adjacent in both."""
    if part.held is not None:
        _require_held(part, box)
    target = target.reshape(1) if not target.shape else target
    sizes = part.box.sizes or (1,)
    origin = tuple(own - base for own, base in zip(box.offsets, part.box.offsets, strict=True)) or (0,)
    depth = 0
    while target.shape[depth + 1 :] != sizes[depth + 1 :] or not target[(0,) * depth].flags.c_contiguous:
        depth += 1
    strides = [prod(sizes[place + 1 :]) * target.itemsize for place in range(len(sizes))]
    first = part.start + sum(start * stride for start, stride in zip(origin, strides, strict=True))
    try:
        with part.path.open("rb", buffering=0) as stream:
            for index in product(*(range(count) for count in target.shape[:depth])):
                at = first + sum(number * stride for number, stride in zip(index, strides, strict=False))
                _read_all(stream.fileno(), _bytes_of(target[index]), at, part.path)
    except OSError as error:
        raise DataError(f"{part.path}: cannot be read: {error.strerror}") from error


def _require_held(part: StoredPart, box: Box) -> None:
    held = part.held or ()
    for first, last in part.spans(box):
        place = bisect_right(held, first, key=lambda span: span[0]) - 1
        if first < last and (place < 0 or held[place][1] < last):
            raise DataError(f"{part.path}: bytes {first} to {last}, of {part.name}, were not fetched")


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _read_all(descriptor: int, target: memoryview, start: int, path: Path) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], start + done)
        if not count:
            raise DataError(f"{path}: ends early")
        done += count
