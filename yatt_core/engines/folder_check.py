"""Finds what engines would refuse about a model's folder once they open it, before anything is started.

Consumes the folder's small files and the headers of its weights, and who will open it. Raises `ConfigurationError`. A plain
Llama, Qwen2 or Qwen3 is judged by its config.json alone; for any other model, transformers builds it without weights, which
takes seconds. No code from the folder is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.models.config_file import read_config
from yatt_core.models.dense_tensors import is_plain, wrong_tensors
from yatt_core.models.model_folder import tensor_shapes
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer

QUANTIZATION = ("quantization_config", "compression_config")
"""Keys of config.json with which a folder says that its weights are quantised."""
REMOTE_CODE = "auto_map"
NAMED = 3
"""Number of wrong tensors that a message names."""
SUPPORTED_LAYERS = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class Opener:
    """Who opens a folder, and as what.

    generates: whether the torch rollout engine decodes with it.
    trainer: the engine that trains it, or a critic or teacher beside it; None for others.
    classifies: whether it is opened as a classifier.
    images: whether its image processor is used.
    adapters: last name components of the matrices whose adapters are merged into the folder's tensors; empty if none are.
    """

    generates: bool = False
    trainer: TorchTrainer | Fsdp2Trainer | MegatronTrainer | None = None
    classifies: bool = False
    images: bool = False
    adapters: tuple[str, ...] = ()


def check_folder(folder: Path, opener: Opener) -> None:
    """Raises `ConfigurationError`, which begins with the folder, for a model that the opener would refuse."""
    config = read_config(folder)
    check_plain_weights(folder, config)
    if is_plain(config):
        if not opener.classifies:
            _check_tensors(folder, config)
    else:
        _check_built(folder, config, opener)
    if isinstance(opener.trainer, MegatronTrainer):
        _check_megatron(folder, opener.trainer)
    if opener.images and "vision_config" in config:
        from yatt_core.engines.images import ImageReader

        ImageReader(str(folder), folder)


def check_plain_weights(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for a folder of quantised weights, which no engine of transformers' can train or run."""
    for part in (config, config.get("text_config")):
        found = next((part[key] for key in QUANTIZATION if part.get(key)), None) if isinstance(part, Mapping) else None
        if found is not None:
            method = found.get("quant_method") if isinstance(found, Mapping) else found
            raise ConfigurationError(
                f"{folder}: its weights are quantised ({method or 'quantization_config'}); expected the model that they were "
                "quantised from, in float32, bfloat16 or float16"
            )


def own_code(config: Mapping[str, Any]) -> str:
    """Returns the names of the classes that a folder brings itself; empty if it brings none."""
    found = config.get(REMOTE_CODE)
    return ", ".join(sorted(map(str, found.values()))) if isinstance(found, Mapping) else ""


def _check_tensors(folder: Path, config: Mapping[str, Any]) -> None:
    stored = {name: tuple(shape) for name, shape in tensor_shapes(folder)}
    if wrong := wrong_tensors(config, stored):
        rest = f", and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise ConfigurationError(
            f"{folder}: the weights are not those that config.json describes: {', '.join(wrong[:NAMED])}{rest}"
        )


def _check_built(folder: Path, config: Mapping[str, Any], opener: Opener) -> None:
    """Raises what building the model raises, and what the opener refuses about its modules."""
    from yatt_core.models.meta_device import empty_causal_lm, empty_classifier

    try:
        model: Any = (empty_classifier if opener.classifies else empty_causal_lm)(str(folder), "float32")
    except ConfigurationError as error:
        if code := own_code(config):
            raise ConfigurationError(
                f"{folder}: transformers does not have models of type {config.get('model_type')!r}, and the folder's own code "
                f"({REMOTE_CODE}: {code}) is never executed; expected a type that transformers has"
            ) from error
        raise
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if opener.generates and (unknown := kinds - SUPPORTED_LAYERS):
        raise ConfigurationError(
            f"{folder}: the torch rollout engine cannot decode layers of type {', '.join(sorted(unknown))}; use a model with "
            "attention in every layer, or rollout.engine.kind: vllm (for a judge, its engine's)"
        )
    if isinstance(opener.trainer, TorchTrainer | Fsdp2Trainer):
        _check_trained(model, opener.trainer, kinds)
    if opener.adapters:
        _check_adapted(folder, model, opener.adapters)


def _check_trained(model: Any, trainer: TorchTrainer | Fsdp2Trainer, kinds: set[str]) -> None:
    from yatt_core.engines.train.model.division import divided

    divided(model)
    if isinstance(trainer, Fsdp2Trainer):
        from yatt_core.engines.train.fsdp2.sharding import shardable_layers

        shardable_layers(model)
    elif trainer.packed and (not model._supports_attention_backend or kinds - SUPPORTED_LAYERS):
        raise ConfigurationError(
            f"trainer.engine.packed: {type(model).__name__} does not support packed samples; set it to false"
        )


def _check_adapted(folder: Path, model: Any, targets: Sequence[str]) -> None:
    """Raises `ConfigurationError` if the folder stores a matrix that gets adapters under another name than the model's own."""
    stored = {name for name, _ in tensor_shapes(folder)}
    ends = tuple(f".{target}.weight" for target in targets)
    other = [name for name, _ in model.named_parameters() if name.endswith(ends) and name not in stored]
    if other:
        raise ConfigurationError(
            f"trainer.lora.sync: engines merge adapters into the folder's tensors, but {folder} stores {other[0]} under another "
            "name; expected merged"
        )


def _check_megatron(folder: Path, trainer: MegatronTrainer) -> None:
    from yatt_core.engines.train.megatron.architecture import architecture_of
    from yatt_core.models.loading import read_config as transformers_config

    architecture_of(transformers_config(str(folder)), trainer)
