"""Names and shapes of a model's tensors, as in its Hugging Face folder: an update must contain all of them.

Consumes a folder with config.json and safetensors files, of which it reads only the headers. An engine in a process of its own
takes a vision-language model's tensors by the names of its modules in transformers, under which the trainer sends them; such
folders may keep older names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from yatt_core.engines.rollout.incoming import ExpectedTensors
from yatt_core.errors import ConfigurationError

HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class TensorLayout(ExpectedTensors):
    """The tensors of a model. A tied head has the name of the embeddings.

    positions: maximum number of tokens of a sequence; None if unlimited.
    vision: whether the model has a vision tower.
    """

    positions: int | None
    vision: bool


def read_layout(folder: Path) -> TensorLayout:
    """Reads the layout of a model folder. Raises `ConfigurationError` if it cannot be read."""
    config_path = folder / "config.json"
    shapes = dict[str, tuple[int, ...]]()
    try:
        config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigurationError(f"{folder}: is not a readable model folder: {error}") from None
    if not shapes:
        raise ConfigurationError(f"{folder}: has no *.safetensors; other weight formats can run code and are not read")
    text = config.get("text_config") or config
    renamed = dict[str, str]()
    if config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)):
        shapes.pop(HEAD, None)
        renamed[HEAD] = "model.embed_tokens.weight"
    positions = text.get("max_position_embeddings")
    return TensorLayout(shapes, renamed, None if positions is None else int(positions), "vision_config" in config)


def engine_layout(folder: Path) -> TensorLayout:
    """Returns what an engine in a process of its own takes. Raises as `read_layout` does."""
    layout = read_layout(folder)
    if not layout.vision:
        return layout
    # Imported only here: an engine of text needs neither torch's modules nor transformers in this process.
    from yatt_core.models.meta_device import empty_causal_lm

    model = empty_causal_lm(str(folder), "float32")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if not layout.renamed:
        return replace(layout, shapes=shapes)
    shapes.pop(HEAD, None)
    (embeddings,) = (name for name in shapes if name.endswith("embed_tokens.weight"))
    return replace(layout, shapes=shapes, renamed={HEAD: embeddings})
