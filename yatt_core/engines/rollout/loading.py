"""Loads a local Hugging Face causal language model, with a vision tower or without.

Consumes a folder; produces a torch module. Touches no network.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

DTYPES = ("float32", "bfloat16")


def load_causal_lm(path: str, dtype: str) -> nn.Module:
    """The model in a folder with config.json and safetensors weights, in evaluation mode, on the CPU.

    dtype: `float32` or `bfloat16`. Attention runs through torch's scaled dot product. No code from the folder is run.
    Raises `ConfigurationError` when the folder is no such model, or its weights do not fill the model.
    """
    folder = Path(path)
    if dtype not in DTYPES:
        raise ConfigurationError(f"dtype {dtype!r}: known are {', '.join(DTYPES)}")
    model_type = _model_type(folder)
    transformers = _quiet_transformers()
    import torch
    from safetensors import SafetensorError

    try:
        model, report = _factory(transformers, model_type).from_pretrained(
            str(folder),
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(f"{folder}: cannot be loaded as a causal model ({model_type}): {error}") from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:5])
        raise ConfigurationError(f"{folder}: the weights lack {len(report['missing_keys'])} tensors, such as {missing}")
    module: nn.Module = model.eval()
    return module


def _factory(transformers: Any, model_type: str) -> Any:
    """What makes a model of this type; the vision-language family has a class of its own."""
    return transformers.LlavaForConditionalGeneration if model_type == "llava" else transformers.AutoModelForCausalLM


def _model_type(folder: Path) -> str:
    """`model_type` of the folder's config, after a look at what a model folder needs."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ConfigurationError(f"{folder}: no model folder, it has no config.json")
    if not any(folder.glob("*.safetensors")):
        raise ConfigurationError(f"{folder}: has no *.safetensors; other weight formats can run code and are not read")
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{config_path}: is not JSON: {error}") from None
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        raise ConfigurationError(f"{config_path}: has no model_type")
    return model_type


def _quiet_transformers() -> Any:
    """The transformers package, offline and without its progress bars and advice."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
