"""Builds a causal language model of a Hugging Face folder without its weights, so that a rank can read only its part.

Consumes a folder; produces a module whose parameters are on torch's meta device, which has no memory. Buffers that no
file contains, such as the frequencies of rotary positions, have their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import causal_class, quiet_transformers, read_config
from yatt_core.models.tensor_files import TensorFolder


def empty_causal_lm(path: str, dtype: str) -> nn.Module:
    """Returns the model of a folder without weights, in evaluation mode; otherwise as `load_causal_lm` does.

    Raises `ConfigurationError` if the folder's config describes no such model.
    """
    return _empty(path, dtype, causal_class(path), "a causal model")


def empty_classifier(path: str, dtype: str) -> nn.Module:
    """Returns the sequence classifier of a folder without weights, as `empty_causal_lm` does."""
    return _empty(path, dtype, quiet_transformers().AutoModelForSequenceClassification, "a classifier")


def _empty(path: str, dtype: str, kind: Any, called: str) -> nn.Module:
    config = read_config(path)
    make = partial(kind.from_config, trust_remote_code=False) if hasattr(kind, "from_config") else kind._from_config
    try:
        with torch.device("meta"):
            model: Any = make(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigurationError(f"{path}: cannot be loaded as {called}: {error}") from error
    for parameter in model.parameters():
        # Transformers' mark for tensors that its initialisation leaves as they are.
        parameter._is_hf_initialized = True
    for name, buffer in list(model.named_non_persistent_buffers()):
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner)._buffers[own] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()
    module: nn.Module = model.eval()
    return module


def stored_names(model: nn.Module, folder: TensorFolder) -> Mapping[str, str] | None:
    """Returns, for each of a model's parameters, the name of the tensor in the folder that has its values.

    Returns None if the folder stores some of them in another form, which only transformers can convert.
    """
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    found = {}
    for name, parameter in model.named_parameters():
        names = [one for one in (name, name.removeprefix(prefix)) if one in folder.shapes]
        if not names or tuple(parameter.shape) != folder.shapes[names[0]]:
            return None
        found[name] = names[0]
    return found
