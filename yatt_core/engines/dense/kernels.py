"""Which arithmetic a model is run by: our own where it is covered, else that of its module. It follows from the model alone."""

from __future__ import annotations

from typing import Any, Literal

from yatt_core.engines.dense.shape import ADAPTED, why_general_config

KernelChoice = Literal["auto", "general"]


def kernels_of_folder(model_path: str, kernels: KernelChoice, adapted: bool) -> str:
    """What a run's facts say of it: `fast`, or `general` with the reason. adapted: adapters are trained beside the model."""
    if kernels == "general":
        return "general: wanted"
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(model_path, local_files_only=True, trust_remote_code=False)
    reason = ADAPTED if adapted else why_general_config(config)
    return f"general: {reason}" if reason else "fast"
