"""What a bit-exact replay depends on besides the log, and the revision of the code that runs."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from yatt_core.spec import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer
from yatt_core.spec.sections.trainer import TorchTrainer, TrainerEngineSpec


@cache
def code_revision() -> str:
    """Digest of this package's own source files: equal for equal code, wherever it is installed from."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _layout(engine: TrainerEngineSpec) -> str:
    """Over how many ranks a model is trained and, where that can be done in several ways, how it is divided."""
    layout = f"{engine.kind} x {engine.ranks}"
    if not isinstance(engine, MegatronTrainer):
        return layout
    return f"{layout}, tp {engine.tensor_model_parallel_size}, pp {engine.pipeline_model_parallel_size}"


def environment_facts(spec: RunSpec, model_path: str = "") -> dict[str, str]:
    """Facts whose change may change the last bits of a replayed update. model_path: of the initial model, where known."""
    facts = {
        "code": code_revision(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "layout": _layout(spec.trainer.engine),
    }
    if not spec.virtual:
        import torch

        facts |= {
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": str(torch.get_num_threads()),
        }
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
        if isinstance(spec.trainer.engine, TorchTrainer) and model_path:
            from yatt_core.engines.dense.path import path_of_folder

            adapted = spec.trainer.lora is not None
            facts["arithmetic"] = path_of_folder(model_path, spec.trainer.engine.path, adapted)
        if spec.trainer.engine.kind == "megatron":
            facts["megatron-core"] = version("megatron-core")
        if spec.data.has_images:
            facts["pillow"] = version("pillow")
    return facts
