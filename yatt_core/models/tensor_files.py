"""Reads safetensors files part by part, so that a process reads only the part of a model that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.model_folder import weight_files
from yatt_core.progress import advanced

Slices = slice | tuple[slice, ...]


class Sliceable(Protocol):
    """What has slices: a tensor, or one in a file."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, slices: Slices, /) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file; slices of it may refer to the file's pages, which are shared by all processes."""

    shape: tuple[int, ...]
    stored: Any

    def __getitem__(self, slices: Slices, /) -> torch.Tensor:
        found: torch.Tensor = self.stored[slices]
        advanced()
        return found


class TensorFile:
    """A safetensors file whose tensors, or slices of them, are read one at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises `DataError` if it is missing or unreadable."""
        opened: Any = safe_open
        try:
            self._file = opened(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        self._path = path
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.keys()}  # noqa: SIM118

    def rows(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """Returns rows of a tensor, by default all. Raises `DataError` for a missing tensor."""
        return self.stored(name)[rows]

    def stored(self, name: str) -> StoredTensor:
        """Returns a tensor, to be read by slices. Raises `DataError` for a missing one."""
        if name not in self.shapes:
            raise DataError(f"{self._path}: has no tensor {name}")
        return StoredTensor(self.shapes[name], self._file.get_slice(name))


class TensorFolder:
    """The safetensors files of a Hugging Face folder, whose tensors, or slices of them, are read one at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens the files. Raises `ConfigurationError` if there are none, or if one is unreadable."""
        self._folder = folder
        try:
            files = [TensorFile(path) for path in weight_files(folder)]
        except DataError as error:
            raise ConfigurationError(str(error)) from error
        self._files = {name: file for file in files for name in file.shapes}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all tensors."""
        return {name: file.shapes[name] for name, file in self._files.items()}

    def stored(self, name: str) -> StoredTensor:
        """Returns a tensor, to be read by slices. Raises `ConfigurationError` for a missing one."""
        if name not in self._files:
            raise ConfigurationError(f"{self._folder}: the weights lack {name}")
        return self._files[name].stored(name)
