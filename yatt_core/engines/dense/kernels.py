"""The kernels that run a model: our own if they cover it, otherwise its module's. The model alone decides."""

from __future__ import annotations

from typing import Any, Literal

from yatt_core.engines.dense.shape import ADAPTED, why_general_config
from yatt_core.errors import ConfigurationError

KernelChoice = Literal["auto", "general"]


def kernels_of_folder(model_path: str, kernels: KernelChoice, adapted: bool) -> str:
    """Returns what a run's facts record about its kernels: `fast`, or `general` with the reason.

    adapted: whether adapters are trained with the model.
    """
    if kernels == "general":
        return "general: requested"
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
    reason = ADAPTED if adapted else why_general_config(config)
    return f"general: {reason}" if reason else "fast"


def require_aligned(kernels: KernelChoice, reason: str) -> None:
    """Raises `ConfigurationError` for a model on which sampler and trainer cannot agree to the last bit.

    reason: why our own kernels do not cover the model; empty if they do.
    """
    if kernels == "general":
        reason = "kernels: general asks for transformers' module"
    if reason:
        raise ConfigurationError(
            f"exact: aligned needs a dense Llama or Qwen model on YATT's own kernels, but {reason}; expected true, auto or false"
        )
