"""Names and shapes of a model's tensors, as in its Hugging Face folder: an update must contain all of them.

Consumes a folder with config.json and safetensors files, of which it reads only the headers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from yatt_core.errors import ConfigurationError

HEAD = "lm_head.weight"
EMBEDDINGS = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The tensors of a model.

    shapes: the tensors' shapes by name, without a tied head.
    tied: whether the head is the embeddings.
    positions: maximum number of tokens of a sequence; None if unlimited.
    vision: whether the model has a vision tower.
    embeddings: name of the embeddings.
    """

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool
    positions: int | None
    vision: bool = False
    embeddings: str = EMBEDDINGS

    @property
    def renamed(self) -> Mapping[str, str]:
        """The model's own names of tensors that may arrive under other ones: that of a tied head."""
        return {HEAD: self.embeddings} if self.tied else {}

    def own_name(self, name: str) -> str:
        """Returns the model's own name of a tensor; a tied one may arrive under either of its names."""
        return self.renamed.get(name, name)


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
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    if tied:
        shapes.pop(HEAD, None)
    positions = text.get("max_position_embeddings")
    return TensorLayout(shapes, tied, None if positions is None else int(positions), "vision_config" in config)
