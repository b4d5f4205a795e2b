"""What a bit-exact replay depends on in addition to the log."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby

from yatt_core.algorithms.own import WORKLOADS, distribution_of
from yatt_core.code_revision import code_revision
from yatt_core.engine_environments import VLLM, find_environment, version_in
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import GenerativePart, RewardModelPart, TorchJudge
from yatt_core.spec.sections.accelerated import MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.spec.sections.trainer import TorchTrainer, TrainerEngineSpec

BFLOAT16_PRODUCTS = "bfloat16 products"
"""The fact that says how a CPU multiplies matrices of bfloat16."""
WORKLOAD_PACKAGE = "workload"
"""The fact that says which version of which distribution has the class of a workload."""
ROLLOUT_BITS = "rollout bits"
"""The fact that says what makes the bits of responses repeat, as the rollout engines declare it."""
INVARIANT_KERNELS = "batch-invariant kernels"
FIXED_BATCHES = "fixed decode batches"
NOT_EXACT = "not exact"
OF_VLLM = ("numpy", "pillow", "torch", "transformers")
"""What decides bits beside vLLM in its environment."""


def _layout(engine: TrainerEngineSpec) -> str:
    """Describes the number of ranks that train a model and, if the engine offers a choice, how the model is divided."""
    layout = f"{engine.kind} x {engine.ranks}"
    if not isinstance(engine, MegatronTrainer):
        return layout
    return f"{layout}, tp {engine.tensor_model_parallel_size}, pp {engine.pipeline_model_parallel_size}"


def _vllm_facts(engine: VllmRollout) -> dict[str, str]:
    """Returns the versions in vLLM's environment, which a node that only trains may lack."""
    try:
        found = find_environment(VLLM, engine.environment)
    except ConfigurationError:
        return {}
    beside = {f"{VLLM.name}/{name}": version_in(found, name) for name in OF_VLLM}
    return {found.package: found.version, **beside}


def bfloat16_roles(spec: RunSpec) -> list[str]:
    """Returns what computes in bfloat16 on torch, by the keys of the spec; vLLM has products of its own."""
    if spec.virtual:
        return []
    rollout = spec.rollout.engine
    trainer = spec.trainer.engine
    engines: dict[str, object] = {"trainer.engine": trainer}
    if isinstance(rollout, TorchRollout) and spec.has.controllers:
        engines["rollout.engine"] = rollout
    for part in spec.rewards.judges:
        judge = part.engine if isinstance(part, GenerativePart) else part
        if isinstance(judge, RewardModelPart | TorchJudge):
            engines[f"rewards.parts {part.name!r}"] = judge
    return [key for key, engine in engines.items() if getattr(engine, "dtype", None) == "bfloat16"]


def environment_facts(spec: RunSpec, model_path: str = "") -> dict[str, str]:
    """Returns the facts that, if changed, may change the last bits of a replayed update.

    model_path: folder of the initial model, if known.
    """
    facts = {
        "code": code_revision(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "layout": _layout(spec.trainer.engine),
    }
    if has := distribution_of(spec.workload, WORKLOADS):
        facts[WORKLOAD_PACKAGE] = has
    if not spec.virtual:
        import torch

        facts |= {
            "torch": str(torch.__version__),  # a class of torch's own, which whoever reads it would have to import
            "tokenizers": version("tokenizers"),
            "transformers": version("transformers"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": str(torch.get_num_threads()),
        }
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
        elif bfloat16_roles(spec):
            from yatt_core.bfloat16.way import way_of_processor

            facts[BFLOAT16_PRODUCTS] = way_of_processor()
        if isinstance(spec.trainer.engine, TorchTrainer) and model_path:
            from yatt_core.engines.dense.kernels import kernels_of_folder

            adapted = spec.trainer.lora is not None or spec.trains_reward_model
            facts["arithmetic"] = kernels_of_folder(model_path, spec.trainer.engine.kernels, adapted)
        if spec.trainer.engine.kind == "megatron":
            facts["megatron-core"] = version("megatron-core")
        if isinstance(spec.rollout.engine, VllmRollout) and spec.has.controllers:
            facts |= _vllm_facts(spec.rollout.engine)
        if spec.data.has_images:
            facts["pillow"] = version("pillow")
    return facts


def rollout_facts(spec: RunSpec, engines: Iterable[Mapping[str, bool]]) -> dict[str, str]:
    """Returns the fact `rollout bits` of a run's engines; nothing for a run that computes no responses.

    engines: the capabilities of each, which depend on its type and device.

    Several values if engines differ. Updates do not depend on it: they are repeated from responses that are durable.
    """
    if spec.virtual or not spec.samples_responses:
        return {}
    continuous = spec.rollout.engine.continuous
    found = {_rollout_bits(each.get("batch_invariant", False), continuous) for each in engines}
    return {ROLLOUT_BITS: ", ".join(sorted(found))} if found else {}


def _rollout_bits(invariant: bool, continuous: bool) -> str:
    """Returns why a response has the same bits when it is generated again.

    continuous: whether an engine batches what has just arrived, and does not decode planned batches.
    """
    if invariant:
        return INVARIANT_KERNELS
    return NOT_EXACT if continuous else FIXED_BATCHES


def facts_of_ranks(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the facts of a group of ranks: each value, with its ranks if not all of them have the same.

    found: the facts of each rank. Those that a rank does not know are taken from the others.
    """
    return {name: _joined(values) for name, values in _values(found).items()}


def mixed_facts(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns those of `facts_of_ranks` in which ranks differ."""
    return {name: _joined(values) for name, values in _values(found).items() if len(values) > 1}


def _values(found: Sequence[Mapping[str, str]]) -> dict[str, dict[str, list[int]]]:
    """Returns the values of each fact, and the ranks that have them."""
    facts: dict[str, dict[str, list[int]]] = {}
    for rank, own in enumerate(found):
        for name, value in own.items():
            facts.setdefault(name, {}).setdefault(value, []).append(rank)
    return facts


def _joined(values: Mapping[str, Sequence[int]]) -> str:
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({_named(ranks)})" for value, ranks in values.items())


def _named(ranks: Sequence[int]) -> str:
    """Returns ranks in words, such as ranks 0 to 3, 7."""
    parts = []
    for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        numbers = [rank for _, rank in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(parts)}"
