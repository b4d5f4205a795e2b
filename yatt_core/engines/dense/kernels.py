"""The kernels that run a model: our own if they cover it, otherwise its module's. The model alone decides."""

from __future__ import annotations

from typing import Any, Literal

from yatt_core.engines.dense.shape import ADAPTED, why_general_config

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
