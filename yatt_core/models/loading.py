"""Loads a local Hugging Face model: a causal language model, with or without a vision tower, or a sequence classifier.

Consumes a folder. Produces a torch module. Does not access the network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yatt_core.errors import ConfigurationError
from yatt_core.models.offline import keep_libraries_offline
from yatt_core.regular_files import read_object

if TYPE_CHECKING:
    from torch import nn

DTYPES = ("float32", "bfloat16")
NO_TOKEN = -1
CLIP_CLASSES = {"clip": "CLIPModel", "clip_vision_model": "CLIPVisionModelWithProjection"}
"""Classes of transformers by the `model_type` of a folder."""


def load_causal_lm(path: str, dtype: str) -> nn.Module:
    """Returns the model in a folder with config.json and safetensors weights, in evaluation mode, on the CPU.

    dtype: `float32` or `bfloat16`.

    Attention uses torch's scaled dot product. No code from the folder is executed. Raises `ConfigurationError`
    if the folder does not contain such a model, if weights are missing, or if that attention does not suit the model.
    """
    folder = Path(path)
    model_type = _model_type(folder)
    module = _loaded(folder, dtype, _causal_factory(model_type), f"a causal model ({model_type})")
    _check_attention(module, folder)
    return module


def load_classifier(path: str, dtype: str) -> nn.Module:
    """Returns the sequence classifier with a single output in a folder, loaded as by `load_causal_lm`.

    A model without a padding token gets one that occurs in no text, because it looks for the last token that is
    not padding. Raises as `load_causal_lm` does, and for more than one output.
    """
    folder = Path(path)
    model_type = _model_type(folder)
    module: Any = _loaded(
        folder,
        dtype,
        lambda transformers: transformers.AutoModelForSequenceClassification,
        f"a classifier ({model_type})",
    )
    if module.config.num_labels != 1:
        raise ConfigurationError(
            f"{folder}: the classifier has {module.config.num_labels} outputs; expected one (num_labels: 1)"
        )
    if module.config.get_text_config().pad_token_id is None:
        module.config.get_text_config().pad_token_id = NO_TOKEN
    _check_attention(module, folder)
    loaded: nn.Module = module.requires_grad_(False)
    return loaded


def load_clip(path: str) -> nn.Module:
    """Returns the CLIP model in a folder, or a CLIP vision tower with its projection, loaded as by `load_causal_lm`, in float32.

    Its weights require no gradients. Raises as `load_causal_lm` does, and for a model of another family.
    """
    folder = Path(path)
    name = _clip_class(folder, _model_type(folder))
    module = _loaded(folder, "float32", lambda transformers: getattr(transformers, name), f"a CLIP model ({name})")
    return module.requires_grad_(False)


def clip_bytes(path: str) -> int:
    """Returns the bytes of what `load_clip` loads from a folder, of which config.json alone is read. Raises as it does."""
    folder = Path(path)
    name = _clip_class(folder, _stated_type(folder))
    transformers = quiet_transformers()
    import torch

    network_class = getattr(transformers, name)
    try:
        config = network_class.config_class.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{folder}: cannot be read as the config of a CLIP model: {error}") from error
    with torch.device("meta"):
        module: nn.Module = network_class(config)
    return sum(tensor.numel() * torch.float32.itemsize for tensor in module.parameters())


def _clip_class(folder: Path, model_type: str) -> str:
    """Returns the name of the class of transformers for a folder's CLIP model."""
    if model_type not in CLIP_CLASSES:
        raise ConfigurationError(
            f"{folder / 'config.json'}: model_type: expected {' or '.join(CLIP_CLASSES)} (given: {model_type!r})"
        )
    return CLIP_CLASSES[model_type]


def causal_class(path: str) -> Any:
    """Returns the transformers class that creates the causal language model of a folder. Raises `ConfigurationError`."""
    return _causal_factory(_model_type(Path(path)))(quiet_transformers())


def read_config(path: str) -> Any:
    """Returns the transformers config of a model folder. Raises `ConfigurationError` if it cannot be read."""
    folder = Path(path)
    kind = _model_type(folder)
    try:
        return quiet_transformers().AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:  # as transformers does for odd values
        raise ConfigurationError(f"{folder}: its config ({kind}) cannot be read: {error}") from error


def _loaded(folder: Path, dtype: str, factory: Callable[[Any], Any], kind: str) -> nn.Module:
    """Returns the complete model that the transformers factory loads from the folder."""
    if dtype not in DTYPES:
        raise ConfigurationError(f"unknown dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    transformers = quiet_transformers()
    import torch
    from safetensors import SafetensorError

    try:
        model, report = factory(transformers).from_pretrained(
            str(folder),
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(f"{folder}: cannot be loaded as {kind}: {error}") from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:5])
        raise ConfigurationError(f"{folder}: the weights lack {len(report['missing_keys'])} tensors, such as {missing}")
    module: nn.Module = model.eval()
    return module


def _causal_factory(model_type: str) -> Callable[[Any], Any]:
    """Returns the transformers class for models of this type; the vision-language family has its own."""
    if model_type == "llava":
        return lambda transformers: transformers.LlavaForConditionalGeneration
    return lambda transformers: transformers.AutoModelForCausalLM


def _check_attention(module: nn.Module, folder: Path) -> None:
    # Imported late: it needs torch, which takes seconds to import.
    from yatt_core.models.attention_check import check_attention

    check_attention(module, folder)


def _model_type(folder: Path) -> str:
    """Returns `model_type` from the folder's config after checking that the folder has what a model needs."""
    model_type = _stated_type(folder)
    if not any(folder.glob("*.safetensors")):
        raise ConfigurationError(f"{folder}: has no *.safetensors; other weight formats can run code and are not read")
    return model_type


def _stated_type(folder: Path) -> str:
    """Returns `model_type` from the folder's config."""
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ConfigurationError(f"{folder}: is not a model folder; it has no config.json")
    model_type = read_object(config_path, str(folder)).get("model_type")
    if not isinstance(model_type, str):
        raise ConfigurationError(f"{config_path}: has no model_type")
    return model_type


def quiet_transformers() -> Any:
    """Returns the transformers package, offline and without progress bars or advice.

    Hides scikit-learn and SciPy from transformers, which would otherwise import them, if installed, for assisted generation
    and for losses of object detection. These are not used here, and the imports would cost each process seconds and 100 MB.
    """
    keep_libraries_offline()
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import transformers
    import transformers.utils

    transformers.utils.is_sklearn_available = _is_not_used
    transformers.utils.is_scipy_available = _is_not_used
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _is_not_used() -> bool:
    return False
