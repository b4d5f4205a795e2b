"""Exports a checkpoint's weights as a Hugging Face folder that transformers, vLLM and other tools can load.

Consumes a checkpoint's weights under Hugging Face names, and the folder of the model that its run started from.
Produces a folder with config, tokenizer, safetensors and `yatt.json`, complete or not at all. Only a block of
a tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from yatt_core import durable
from yatt_core.checkpoints.classifier import AsClassifier, classifier_config
from yatt_core.checkpoints.contents import WEIGHTS as SAVED_WEIGHTS
from yatt_core.checkpoints.contents import open_tensors
from yatt_core.checkpoints.publish import CheckpointIdentity, require_room
from yatt_core.errors import ConfigurationError
from yatt_core.models.config_file import CONFIG, read_config
from yatt_core.models.model_folder import WEIGHTS_INDEX, small_files, weight_files
from yatt_core.models.tokenizer import TOKENIZER_CONFIG, load_tokenizer
from yatt_core.wire.part_files import TYPES, TensorSource
from yatt_core.wire.whole_files import sizes_of, write_whole_tensors

Array = npt.NDArray[Any]

ORIGIN = "yatt.json"
"""Where the weights come from: the checkpoint's identity, with the digest of the weights before any conversion."""
PARTS = ("text_config", "vision_config")
"""Configs nested within the config of a vision-language model; each may name a dtype of its own."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SPELLED = {"float32": "F32", "bfloat16": "BF16"}

FloatName = Literal["float32", "bfloat16"]
_RESERVED = re.compile(r"pad|reserved|unused", re.IGNORECASE)
"""What is in the names of tokens that no text has."""
_SPELLED_NAMES: tuple[tuple[FloatName, str], ...] = (("float32", "F32"), ("bfloat16", "BF16"))


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


class _Converted:
    """Tensors whose floating-point numbers are converted to another type as they are read; a `TensorSource`."""

    def __init__(self, source: TensorSource, dtype: FloatName) -> None:
        self._source = source
        self._dtype = DTYPES[dtype]
        self.shapes = source.shapes
        self.kinds = {
            name: SPELLED[dtype] if _dtype_of(kind).is_floating_point else kind for name, kind in source.kinds.items()
        }

    def blocks(self, name: str) -> Iterator[Array]:
        own = _dtype_of(self._source.kinds[name])
        for block in self._source.blocks(name):
            if not own.is_floating_point:
                yield block
                continue
            converted = torch.from_numpy(block).view(own).to(self._dtype)
            yield converted.view(torch.uint16 if self._dtype == torch.bfloat16 else self._dtype).numpy()


def export_model(
    checkpoint: Path,
    model: Path,
    target: Path,
    identity: CheckpointIdentity,
    dtype: FloatName | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
    reward_model: bool = False,
) -> Exported:
    """Writes the folder `target`, which must not exist yet.

    Raises `ConfigurationError` if the target exists, `DataError` if the weights cannot be read, and
    `StorageFullError` or `InfrastructureError` if writing fails; nothing is left behind in these cases.

    checkpoint: folder of the checkpoint.
    identity: identity of the checkpoint that the weights belong to.
    dtype: dtype of exported floating-point tensors; None keeps each tensor's own.
    advance: called with the bytes written so far and the total bytes of the weights.
    reward_model: whether the run trained a reward model, which is exported as a classifier.
    """
    require_free(target)
    stored = open_tensors(checkpoint, SAVED_WEIGHTS)
    stored.require_whole()
    named_as: TensorSource = AsClassifier(stored) if reward_model else stored
    tensors = _Converted(named_as, dtype) if dtype else named_as
    sizes = sizes_of(tensors)
    durable.make_folder(target.parent)
    require_room(target, sum(sizes.values()))
    with new_folder(target) as partial:
        with durable.refusals(f"{partial}: cannot be written"):
            for path in small_files(model):
                if path.name not in (CONFIG, WEIGHTS_INDEX):
                    copied = partial / path.relative_to(model)
                    copied.parent.mkdir(exist_ok=True)
                    shutil.copyfile(path, copied)
            written = write_whole_tensors(tensors, partial, advance)
        named = _dtype_name(tensors.kinds, sizes)
        config = read_config(model)
        if reward_model:
            config = classifier_config(config, _with_padding(partial))
        durable.write_json(partial / CONFIG, _config_with(config, named))
        durable.write_json(partial / ORIGIN, {**asdict(identity), "dtype": named})
        for path in partial.rglob("*"):
            durable.sync_folder(path) if path.is_dir() else durable.sync_file(path)
    return Exported(len(sizes), written.bytes, named, written.weights)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yields an empty folder beside `target`, which appears under that name once the block ends, complete or not at all.

    What is written into it must be durable by then. Raises `StorageFullError` or `InfrastructureError` if it cannot be made.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with durable.refusals(f"{partial}: cannot be written"):
            partial.mkdir()
        yield partial
        durable.move_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def require_free(target: Path) -> None:
    """Raises `ConfigurationError` unless a folder can be made at a path."""
    if target.exists() or target.is_symlink():
        raise ConfigurationError(f"{target} already exists; name a folder that does not exist yet")
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ConfigurationError(f"{target}: {above} is a file; choose a path inside a folder")


def dtype_of_model(model: Path) -> FloatName:
    """Returns the type that most numbers of a model's weights have; float32 for one that an export cannot have."""
    found: dict[str, int] = {}
    for path in weight_files(model):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                part = file.get_slice(name)
                kind = part.get_dtype()
                found[kind] = found.get(kind, 0) + math.prod(part.get_shape())
    most = max(found, key=lambda kind: found[kind], default="F32")
    return next((name for name, kind in _SPELLED_NAMES if kind == most), "float32")


def _with_padding(folder: Path) -> int | None:
    """Returns the token that fills up shorter rows, the same for config and tokenizer; None if there is none that is safe.

    A classifier reads its score at the last token that is not padding, so that a token with which rows end, or that occurs in
    texts, is none. A tokenizer without a padding token is given one that its makers have reserved.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer.pad_token_id not in (None, tokenizer.eos_token_id):
        return int(tokenizer.pad_token_id)
    template = str(tokenizer.chat_template or "")
    reserved = sorted(
        token
        for token in tokenizer.get_added_vocab()
        if _RESERVED.search(token) and token not in template and token != tokenizer.eos_token
    )
    path = folder / TOKENIZER_CONFIG
    written = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not reserved:
        return None
    written["pad_token"] = reserved[0]
    path.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(tokenizer.convert_tokens_to_ids(reserved[0]))


def _dtype_of(kind: str) -> torch.dtype:
    """Returns the type that safetensors spells `kind`."""
    return torch.bfloat16 if kind == "BF16" else torch.from_numpy(np.empty(0, TYPES[kind])).dtype


def _dtype_name(kinds: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """Returns the dtype that most of the weights have, by bytes, as configs spell it."""
    found: dict[str, int] = {}
    for name, size in sizes.items():
        found[kinds[name]] = found.get(kinds[name], 0) + size
    return str(_dtype_of(max(found, key=lambda kind: found[kind]))).removeprefix("torch.")


def _config_with(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns the model's config with the exported weights' dtype under every dtype key of the config and its parts."""
    named = {key: dtype for key in ("dtype", "torch_dtype") if key in config}
    parts = {
        name: {**config[name], **{key: dtype for key in ("dtype", "torch_dtype") if key in config[name]}}
        for name in PARTS
        if isinstance(config.get(name), dict)
    }
    return {**config, **parts, **(named or {"dtype": dtype})}
