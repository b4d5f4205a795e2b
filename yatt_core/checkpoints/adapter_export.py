"""Exports the low-rank adapters of a checkpoint alone, in peft's format, which vLLM reads too.

Consumes a checkpoint's adapters and the folder of the model that its run started from. Produces a folder with
`adapter_config.json`, `adapter_model.safetensors` and `yatt.json`, complete or not at all.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from yatt_core import durable
from yatt_core.checkpoints.contents import ADAPTER, ADAPTERS, open_tensors
from yatt_core.checkpoints.export import ORIGIN, Exported, new_folder, require_free
from yatt_core.checkpoints.publish import CheckpointIdentity, require_room
from yatt_core.spec.sections.trainer import LoraSpec
from yatt_core.wire.whole_files import sizes_of

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What peft writes before the names of the model's own modules."""


def export_adapter(
    checkpoint: Path, model: Path, target: Path, identity: CheckpointIdentity, lora: LoraSpec
) -> Exported:
    """Writes the folder `target`, which must not exist yet, with the adapters in float32, as they are trained.

    checkpoint: folder of the checkpoint.
    model: folder of the model that peft is to add the adapters to.
    identity: identity of the checkpoint that the adapters belong to.

    Raises as `export_model` does.
    """
    require_free(target)
    stored = open_tensors(checkpoint, ADAPTERS)
    stored.require_whole()
    sizes = sizes_of(stored)
    durable.make_folder(target.parent)
    require_room(target, sum(sizes.values()))
    with new_folder(target) as partial:
        with durable.refusals(f"{partial}: cannot be written"):
            tensors = {_named(name): np.concatenate(list(stored.blocks(name))) for name in stored.shapes}
            save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        durable.write_json(partial / CONFIG, _config(model, lora))
        durable.write_json(partial / ORIGIN, {**asdict(identity), "dtype": "float32"})
        durable.sync_file(partial / WEIGHTS)
    return Exported(len(sizes), sum(sizes.values()), "float32", (WEIGHTS,))


def _named(name: str) -> str:
    """Returns peft's name of a factor, which leaves out the name of the adapter."""
    return f"{PREFIX}{name.replace(f'.{ADAPTER}.weight', '.weight')}"


def _config(model: Path, lora: LoraSpec) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(lora.targets),
        "bias": "none",
        "inference_mode": True,
    }
