"""Which modules the processes of a run import at the start, so that they can be imported ahead of that.

Consumes a spec; produces names of modules.
"""

from __future__ import annotations

from yatt_core.datasets.gym_tasks import PACKAGE, folder_of
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer
from yatt_core.spec.sections.data import ReasoningGymSource
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.spec.sections.trainer import TorchTrainer

QUIET = "yatt_core.models.quiet"
OF_ARROW = "pandas"
"""Arrow imports it at the first conversion of a list."""
OF_POLICIES = (QUIET, "torch", "yatt_core.engines.train.base.policy_engine", OF_ARROW)
"""With which the engines of every language model begin."""
TORCH_TRAINER = "yatt_core.engines.train.torch.engine"
TORCH_ROLLOUT = "yatt_core.engines.rollout.torch.engine"
CONTINUOUS_TORCH_ROLLOUT = "yatt_core.engines.rollout.torch.continuous"
USUAL_TORCH_MODULES = (*OF_POLICIES, TORCH_TRAINER, TORCH_ROLLOUT)
"""With which engines begin as long as no spec is known."""


def data_modules(spec: RunSpec) -> tuple[str, ...]:
    """Returns the modules with which a run's inputs are made, and their tasks score responses."""
    tasks = [source.task for source in spec.data.sources if isinstance(source, ReasoningGymSource)]
    if not tasks:
        return ()
    whole = () if all(map(folder_of, tasks)) else (PACKAGE,)
    return ("yatt_core.datasets.gym", *whole)


def input_modules(spec: RunSpec) -> tuple[str, ...]:
    """Returns the modules that building a run's inputs imports, which its workers have imported before."""
    if not spec.has.language_model:
        return ()
    of_model = () if spec.virtual else (QUIET, *_model_modules(spec))
    return (*data_modules(spec), OF_ARROW, *of_model)


def torch_modules(spec: RunSpec) -> tuple[str, ...]:
    """Returns the modules, all of which import torch, with which engines of a spec begin; empty for a run on virtual engines.

    Engines that vLLM or Megatron-Core run import these libraries themselves: both look for devices.
    """
    if spec.virtual:
        return ()
    if not spec.has.language_model:
        samplers = ("yatt_core.engines.rollout.workload.engine",) if spec.has.samplers else ()
        return ("torch", "yatt_core.engines.train.workload.own", *samplers)
    modules = list(OF_POLICIES)
    if isinstance(spec.trainer.engine, TorchTrainer):
        modules.append(TORCH_TRAINER)
    if isinstance(spec.trainer.engine, Fsdp2Trainer):
        modules.append("yatt_core.engines.train.fsdp2.engine")
    if isinstance(spec.rollout.engine, TorchRollout):
        modules.append(CONTINUOUS_TORCH_ROLLOUT if spec.rollout.engine.continuous else TORCH_ROLLOUT)
    return (*modules, *_model_modules(spec))


def _model_modules(spec: RunSpec) -> tuple[str, ...]:
    """Returns the module with which a model is made from a config; it imports torch."""
    if not isinstance(spec.model, ModelFromConfig):
        return ()
    return (f"transformers.models.{spec.model.architecture}.modeling_{spec.model.architecture}",)
