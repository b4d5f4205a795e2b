"""Names and shapes of a model's tensors as its Hugging Face folder has them: what an update has to bring, all of it.

Consumes a folder with config.json and safetensors files, of which the headers are read; refuses weights that are not its model's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from yatt_core.engines.protocol import Tensors
from yatt_core.errors import ConfigurationError, InfrastructureError

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """shapes: by name, without a tied head. tied: the head is the embeddings. positions: most tokens of a sequence, if any."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool
    positions: int | None

    def resolve(self, tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
        """The given arrays by the model's own names, all of them there and of the right shape.

        A tied tensor may come under either of its names. Raises `InfrastructureError`.
        """
        given = {self._own_name(name): array for name, array in tensors.items()}
        if unknown := sorted(set(given) - set(self.shapes)):
            raise InfrastructureError(f"weights hold {len(unknown)} tensors that the model lacks, such as {unknown[0]}")
        if missing := sorted(set(self.shapes) - set(given)):
            raise InfrastructureError(f"weights lack {len(missing)} tensors of the model, such as {missing[0]}")
        for name, array in given.items():
            if array.shape != self.shapes[name]:
                raise InfrastructureError(
                    f"weights: {name} has shape {list(array.shape)}, the model's is {list(self.shapes[name])}"
                )
            if not np.issubdtype(array.dtype, np.floating):
                raise InfrastructureError(f"weights: {name} has dtype {array.dtype}, floating point is wanted")
        # In the folder's order, which keeps a layer's tensors together.
        return {name: given[name] for name in self.shapes}

    def _own_name(self, name: str) -> str:
        return EMBEDDINGS if self.tied and name == HEAD else name


def read_layout(folder: Path) -> TensorLayout:
    """The layout of a model folder. Raises `ConfigurationError` for one that cannot be read."""
    config_path, shapes = folder / "config.json", dict[str, tuple[int, ...]]()
    try:
        config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigurationError(f"{folder}: is no model folder that can be read: {error}") from None
    if not shapes:
        raise ConfigurationError(f"{folder}: has no *.safetensors; other weight formats can run code and are not read")
    text = config.get("text_config", config)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    if tied:
        shapes.pop(HEAD, None)
    positions = text.get("max_position_embeddings")
    return TensorLayout(shapes, tied, None if positions is None else int(positions))
