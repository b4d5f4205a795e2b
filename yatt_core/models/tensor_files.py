"""Reads safetensors files tensor by tensor, so that a model need not fit into memory twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from yatt_core.errors import ConfigurationError, DataError


class TensorFile:
    """A safetensors file whose tensors are read one at a time, or some rows of them."""

    def __init__(self, path: Path) -> None:
        """Raises `DataError` for a missing or unreadable file."""
        opened: Any = safe_open
        try:
            self._file = opened(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        self._path = path
        self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.keys()}  # noqa: SIM118

    def rows(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """Rows of a tensor, all by default. Raises `DataError` for a tensor that is not there."""
        if name not in self.shapes:
            raise DataError(f"{self._path}: has no tensor {name}")
        found: torch.Tensor = self._file.get_slice(name)[rows]
        return found


class TensorFolder:
    """The safetensors files of a Hugging Face folder, whose tensors are read one at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises `DataError` for an unreadable file."""
        self._folder = folder
        files = [TensorFile(path) for path in sorted(folder.glob("*.safetensors"))]
        self._files = {name: file for file in files for name in file.shapes}

    def tensor(self, name: str) -> torch.Tensor:
        """A whole tensor. Raises `ConfigurationError` for one that is not there."""
        if name not in self._files:
            raise ConfigurationError(f"{self._folder}: the weights lack {name}")
        return self._files[name].rows(name)
