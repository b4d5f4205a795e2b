"""Exports a checkpoint's weights as a Hugging Face folder that transformers, vLLM and other tools can load.

Consumes a checkpoint's weights under Hugging Face names, and the folder of the model that its run started from.
Produces a folder with config, tokenizer, safetensors and `yatt.json`, complete or not at all. Only one file's
tensors are in memory at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from yatt_core import durable
from yatt_core.checkpoints.contents import WEIGHTS as SAVED_WEIGHTS
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.checkpoints.publish import CheckpointIdentity, require_room
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.models.model_folder import CONFIG, WEIGHTS, WEIGHTS_INDEX, read_config, small_files
from yatt_core.wire.part_files import TYPES, PartFiles

ORIGIN = "yatt.json"
"""Where the weights come from: the checkpoint's identity, with the digest of the weights before any conversion."""
FILE_BYTES = 2 << 30
"""Maximum size of a weights file, unless a single tensor is larger."""
PARTS = ("text_config", "vision_config")
"""Configs nested within the config of a vision-language model; each may name a dtype of its own."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

FloatName = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Exported:
    """What `export_model` wrote.

    tensors, bytes: number and total size of the weights.
    files: names of the weights files.
    """

    tensors: int
    bytes: int
    dtype: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as it will be stored.

    bytes: size as stored.
    """

    name: str
    dtype: torch.dtype
    bytes: int


def export_model(
    checkpoint: Path,
    model: Path,
    target: Path,
    identity: CheckpointIdentity,
    dtype: FloatName | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Writes the folder `target`, which must not exist yet.

    Raises `ConfigurationError` if the target exists, `DataError` if the weights cannot be read, and
    `StorageFullError` or `InfrastructureError` if writing fails; nothing is left behind in these cases.

    checkpoint: folder of the checkpoint.
    identity: identity of the checkpoint that the weights belong to.
    dtype: dtype of exported floating-point tensors; None keeps each tensor's own.
    advance: called with the bytes written so far and the total bytes of the weights.
    """
    if target.exists() or target.is_symlink():
        raise ConfigurationError(f"{target} already exists; name a folder that does not exist yet")
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ConfigurationError(f"{target}: {above} is a file; choose a path inside a folder")
    partial = target.with_name(f".{target.name}.partial")
    tensors = open_tensors(checkpoint, SAVED_WEIGHTS)
    tensors.require_whole()
    entries = _entries(tensors, DTYPES[dtype] if dtype else None)
    total = sum(entry.bytes for entry in entries)
    durable.make_folder(target.parent)
    require_room(target, total)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with _refusals(partial):
            partial.mkdir()
            for path in small_files(model):
                if path.name not in (CONFIG, WEIGHTS_INDEX):
                    shutil.copyfile(path, partial / path.name)
        files = _write_weights(tensors, entries, partial, total, advance)
        stored = _dtype_name(entries)
        durable.write_json(partial / CONFIG, _config_with(read_config(model), stored))
        durable.write_json(partial / ORIGIN, {**asdict(identity), "dtype": stored})
        for path in partial.iterdir():
            durable.sync_file(path)
        durable.move_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(len(entries), total, stored, files)


def _entries(tensors: PartFiles, dtype: torch.dtype | None) -> list[_Entry]:
    """Returns all tensors in the order in which they are written.

    dtype: dtype of floating-point tensors; None keeps each tensor's own.
    """
    found = []
    for name, shape in sorted(tensors.shapes.items()):
        own = _dtype_of(tensors.kinds[name])
        kept = dtype if dtype is not None and own.is_floating_point else own
        found.append(_Entry(name, kept, prod(shape) * kept.itemsize))
    return found


def _dtype_of(kind: str) -> torch.dtype:
    """Returns the type that safetensors spells `kind`."""
    return torch.bfloat16 if kind == "BF16" else torch.from_numpy(np.empty(0, TYPES[kind])).dtype


def _tensor(tensors: PartFiles, name: str) -> torch.Tensor:
    return torch.from_numpy(tensors.read(name)).view(_dtype_of(tensors.kinds[name]))


def _write_weights(
    tensors: PartFiles,
    entries: Sequence[_Entry],
    folder: Path,
    total: int,
    advance: Callable[[int, int], None],
) -> tuple[str, ...]:
    """Writes a single weights file, or several files and their index; returns their names."""
    groups, done = list(_grouped(entries)), 0
    names = [
        WEIGHTS if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        for number in range(1, len(groups) + 1)
    ]
    for name, group in zip(names, groups, strict=True):
        held = {entry.name: _tensor(tensors, entry.name).to(entry.dtype).contiguous() for entry in group}
        with _refusals(folder / name):
            save_file(held, folder / name, metadata={"format": "pt"})
        done += sum(entry.bytes for entry in group)
        advance(done, total)
    if len(groups) > 1:
        places = {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group}
        durable.write_json(folder / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": places})
    return tuple(names)


def _grouped(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """Yields consecutive entries, as many per group as fit into one file."""
    group: list[_Entry] = []
    for entry in entries:
        if group and sum(member.bytes for member in group) + entry.bytes > FILE_BYTES:
            yield group
            group = []
        group.append(entry)
    yield group


def _dtype_name(entries: Iterable[_Entry]) -> str:
    """Returns the dtype that most of the weights have, by bytes, as configs spell it."""
    sizes: dict[torch.dtype, int] = {}
    for entry in entries:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.bytes
    return str(max(sizes, key=lambda dtype: sizes[dtype])).removeprefix("torch.")


def _config_with(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns the model's config with the exported weights' dtype under every dtype key of the config and its parts."""
    named = {key: dtype for key in ("dtype", "torch_dtype") if key in config}
    parts = {
        name: {**config[name], **{key: dtype for key in ("dtype", "torch_dtype") if key in config[name]}}
        for name in PARTS
        if isinstance(config.get(name), dict)
    }
    return {**config, **parts, **(named or {"dtype": dtype})}


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turns write errors into YATT's own; safetensors raises an error that is not an `OSError`."""
    try:
        with durable.refusals(f"{path}: cannot be written"):
            yield
    except SafetensorError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error}") from error
