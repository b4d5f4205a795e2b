"""Finds the parts of a spec that suffice for planning, but not for training with this installation.

These are engines without an installed package, models without weights, and parts that cannot be trained together.
"""

from __future__ import annotations

from collections.abc import Iterator

from yatt_core.engine_environments import VLLM, find_environment
from yatt_core.errors import ConfigurationError
from yatt_core.installed import MEGATRON, PEFT, S3FS, has_distribution
from yatt_core.spec.combinations import refusals
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.model import ModelConfigFile, ModelSizes
from yatt_core.tracker_kinds import TRACKER_KINDS

LEAST_TEMPERATURE = 0.01
"""The lowest temperature above 0 at which vLLM samples."""


def check_available(spec: RunSpec) -> None:
    """Raises `ConfigurationError`, with one line per key, if a part of the spec works for planning only."""
    if lines := unavailable(spec):
        raise ConfigurationError("\n".join([*lines, "`yatt plan` accepts this spec"]))


def _unavailable_judge(place: str, part: GenerativePart) -> list[str]:
    lines = list[str]()
    if isinstance(part.engine, VllmRollout):
        lines += _vllm_obstacles(f"{place}.engine", part.engine)
        if part.engine.instances:
            lines.append(f"{place}.engine.instances: a judge runs on every device of the pool; leave instances out")
        lines += _too_cold(f"{place}.temperature", part.temperature)
    if isinstance(part.model, ModelConfigFile | ModelSizes):
        lines.append(f"{place}.model.kind: {part.model.kind!r} describes a model without weights; expected folder")
    return lines


def _unavailable_sharding(engine: Fsdp2Trainer | MegatronTrainer) -> Iterator[str]:
    if isinstance(engine, MegatronTrainer):
        if not has_distribution(MEGATRON):
            yield "trainer.engine.kind: Megatron-Core is not installed; install yatt[megatron] or use fsdp2"
        if engine.optimizer_cpu_offload:
            yield "trainer.engine.optimizer_cpu_offload: true works for planning only; training needs false"
    if not engine.ranks:
        key = "ranks" if isinstance(engine, Fsdp2Trainer) else "data_parallel_size"
        yield f"trainer.engine.{key}: 0 leaves the number to `yatt plan`; training needs 1 or more"


def missing_tracker(tracker: str) -> str | None:
    """Returns a message, starting with the spec's key, that names the package a tracker needs; None if it is installed."""
    package = TRACKER_KINDS[tracker].package
    if package is None or has_distribution(package):
        return None
    return f"tracking.trackers: {package} is not installed; install yatt[{tracker}], or leave {tracker} out"


def _vllm_obstacles(place: str, engine: VllmRollout) -> Iterator[str]:
    """Yields what prevents a vLLM engine from working here."""
    try:
        find_environment(VLLM, engine.environment)
    except ConfigurationError as error:
        key = "kind" if engine.environment is None else "environment"
        yield f"{place}.{key}: {error}, or use torch"


def _vllm_rollout_obstacles(spec: RunSpec, engine: VllmRollout) -> Iterator[str]:
    yield from _vllm_obstacles("rollout.engine", engine)
    if not engine.instances:
        yield "rollout.engine.instances: 0 leaves the number to `yatt plan`; generation needs 1 or more"
    yield from _too_cold("rollout.temperature", spec.rollout.temperature)
    if spec.evaluation.sampling is not None:
        yield from _too_cold("evaluation.sampling.temperature", spec.evaluation.sampling.temperature)


def _too_cold(key: str, temperature: float) -> Iterator[str]:
    if 0.0 < temperature < LEAST_TEMPERATURE:
        yield f"{key}: vLLM needs a temperature of at least {LEAST_TEMPERATURE} (given: {temperature:g})"


def unavailable(spec: RunSpec) -> list[str]:
    """Returns one line, starting with the key, for each part that works for planning only."""
    lines = refusals(spec, "starting")
    if isinstance(spec.trainer.engine, Fsdp2Trainer | MegatronTrainer):
        lines += _unavailable_sharding(spec.trainer.engine)
    if isinstance(spec.rollout.engine, VllmRollout):
        lines += _vllm_rollout_obstacles(spec, spec.rollout.engine)
    if spec.trainer.lora is not None and not has_distribution(PEFT):
        lines.append("trainer.lora: peft is not installed; install yatt[lora], or leave lora out to train all weights")
    if spec.storage.url is not None and not has_distribution(S3FS):
        lines.append(
            "storage.url: s3fs is not installed; install yatt[s3], or leave storage out to keep everything in the "
            "run's folder"
        )
    lines += filter(None, map(missing_tracker, spec.tracking.names))
    for number, part in enumerate(spec.rewards.parts):
        if isinstance(part, GenerativePart):
            lines += _unavailable_judge(f"rewards.parts.{number}", part)
    if isinstance(spec.model, ModelConfigFile | ModelSizes) and not spec.virtual:
        lines.append(
            f"model.kind: {spec.model.kind!r} describes a model without weights; training needs folder or from_config"
        )
    return lines
