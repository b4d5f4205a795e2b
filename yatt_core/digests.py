"""Digests that show whether two runs are identical (weights, experience, metrics), and canonical JSON.

All are sha256 in lower-case hexadecimal. They depend on contents alone, never on files, controllers, attempts
or time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

READ_BYTES = 1 << 20
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Returns JSON with sorted keys and no spaces. Rejects NaN, which has no canonical form."""
    return _CANONICAL.encode(value)


def json_digest(value: Any) -> str:
    """Returns the sha256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file's bytes, which are read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def path_digest(path: Path) -> str:
    """Returns the digest of a file, or of all files of a folder with their names."""
    if path.is_file():
        return file_sha256(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return json_digest({str(each.relative_to(path)): file_sha256(each) for each in files})


def weights_digest(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the sha256 of the name, dtype, shape and little-endian bytes of all tensors, sorted by name.

    tensors: the full state dict; tied tensors appear once.
    """
    return ordered_weights_digest((name, tensors[name]) for name in sorted(tensors))


def ordered_weights_digest(tensors: Iterable[tuple[str, npt.NDArray[Any]]]) -> str:
    """Returns the `weights_digest` of tensors that come one after another, sorted by name; none of them is kept."""
    found = WeightsDigest()
    for name, array in tensors:
        found.begin(name, array.dtype.name, array.shape)
        found.add(array)
    return found.hexdigest()


class WeightsDigest:
    """A `weights_digest` in the making, from tensors that arrive sorted by name, each whole or in blocks of rows."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._last = ""

    def begin(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Begins a tensor. Raises `ValueError` if its name does not come after the last one.

        dtype: numpy's name of its type.
        """
        if name <= self._last:
            raise ValueError(f"tensor {name} comes after {self._last}, but the digest is over sorted names")
        self._last = name
        self._sha256.update(f"{name}|{dtype}|{','.join(map(str, shape))}|".encode())

    def add(self, block: npt.NDArray[Any]) -> None:
        """Adds the tensor's next rows, or all of it."""
        little_endian = block.astype(block.dtype.newbyteorder("<"), copy=False)
        self._sha256.update(np.ascontiguousarray(little_endian).data.cast("B") if block.size else b"")

    def hexdigest(self) -> str:
        """Returns the digest of everything that was added."""
        return self._sha256.hexdigest()


def experience_digest_of_iteration(group_digests: bytes) -> str:
    """Returns the digest of an iteration's experience.

    group_digests: the digests of the prompts' groups (32 bytes each), in order of prompt ordinal.
    """
    return hashlib.sha256(group_digests).hexdigest()


def chain_digest(digests: Iterable[str]) -> str:
    """Returns the sha256 of a sequence of digests; for a branch's iterations, this is its experience digest."""
    digest = hashlib.sha256()
    for item in digests:
        digest.update(item.encode())
    return digest.hexdigest()
