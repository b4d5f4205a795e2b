"""Reads safetensors files tensor by tensor, so that a model need not fit into memory twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from yatt_core.errors import ConfigurationError, DataError


class TensorFile:
    """A safetensors file whose tensors, or some of their rows, are read one at a time."""

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
        if name not in self.shapes:
            raise DataError(f"{self._path}: has no tensor {name}")
        found: torch.Tensor = self._file.get_slice(name)[rows]
        return found


class TensorFolder:
    """The safetensors files of a Hugging Face folder, whose tensors are read one at a time."""

    def __init__(self, folder: Path) -> None:
        """Opens the files. Raises `DataError` if one is unreadable."""
        self._folder = folder
        files = [TensorFile(path) for path in sorted(folder.glob("*.safetensors"))]
        self._files = {name: file for file in files for name in file.shapes}

    def tensor(self, name: str) -> torch.Tensor:
        """Returns a whole tensor. Raises `ConfigurationError` for a missing one."""
        if name not in self._files:
            raise ConfigurationError(f"{self._folder}: the weights lack {name}")
        return self._files[name].rows(name)
