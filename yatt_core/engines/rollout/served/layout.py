"""Names and shapes of the tensors that a vLLM engine takes.

Consumes a model folder. They are the folder's own, but those of a vision-language model are the names of its modules in
transformers, under which the trainer sends them; such folders may keep older names.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from yatt_core.engines.rollout.tensor_layout import HEAD, TensorLayout, read_layout

EMBEDDINGS = "embed_tokens.weight"


def engine_layout(folder: Path) -> TensorLayout:
    """Returns the layout of a model folder. Raises `ConfigurationError` if it cannot be read."""
    layout = read_layout(folder)
    if not layout.vision:
        return layout
    # Imported only here: an engine of text needs neither torch's modules nor transformers in this process.
    from yatt_core.models.meta_device import empty_causal_lm

    model = empty_causal_lm(str(folder), "float32")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if layout.tied:
        shapes.pop(HEAD, None)
    (embeddings,) = (name for name in shapes if name.endswith(EMBEDDINGS))
    return replace(layout, shapes=shapes, embeddings=embeddings)
