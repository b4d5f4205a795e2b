"""Which described parts can be planned with but not trained with: engines without an adapter, models without weights."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import get_args

from yatt_core.errors import ConfigurationError
from yatt_core.spec.accelerated import Fsdp2Trainer
from yatt_core.spec.judges import GenerativePart, TorchJudge, VirtualJudge
from yatt_core.spec.model import ModelConfigFile, ModelSizes
from yatt_core.spec.rollout import RolloutEngineSpec, TorchRollout, VirtualRollout
from yatt_core.spec.run import RunSpec
from yatt_core.spec.trainer import TorchTrainer, TrainerEngineSpec, VirtualTrainer

TRAINABLE = (TorchRollout, VirtualRollout, TorchTrainer, VirtualTrainer, Fsdp2Trainer)


def check_available(spec: RunSpec) -> None:
    """Raises `ConfigurationError`, a line a key, where a part of the spec can only be planned with."""
    if lines := unavailable(spec):
        raise ConfigurationError("\n".join([*lines, "`yatt plan` takes this spec as it is"]))


def _unavailable_judge(place: str, part: GenerativePart) -> list[str]:
    lines = []
    if not isinstance(part.engine, TorchJudge | VirtualJudge):
        lines.append(
            f"{place}.engine.kind: {part.engine.kind!r} is not yet available for judging; available: torch, virtual"
        )
    if isinstance(part.model, ModelConfigFile | ModelSizes):
        lines.append(
            f"{place}.model.kind: {part.model.kind!r} describes a model without weights; available: folder, trained"
        )
    return lines


def _unavailable_sharding(spec: RunSpec, engine: Fsdp2Trainer) -> Iterator[str]:
    if not engine.ranks:
        yield "trainer.engine.ranks: 0 leaves the number to the plan; available for training: 1 or more"
    if spec.data.has_images:
        yield f"trainer.engine.kind: {engine.kind!r} takes prompts of text alone; available with images: torch"


def unavailable(spec: RunSpec) -> list[str]:
    """A line for each part that can only be planned with; it begins with the key."""
    lines = []
    for key, engine, union in (
        ("rollout.engine.kind", spec.rollout.engine, RolloutEngineSpec),
        ("trainer.engine.kind", spec.trainer.engine, TrainerEngineSpec),
    ):
        if not isinstance(engine, TRAINABLE):
            known = [kind.model_fields["kind"].default for kind in get_args(get_args(union)[0]) if kind in TRAINABLE]
            lines.append(f"{key}: {engine.kind!r} is not yet available for training; available: {', '.join(known)}")
    if isinstance(spec.trainer.engine, Fsdp2Trainer):
        lines += _unavailable_sharding(spec, spec.trainer.engine)
    if spec.trainer.lora is not None and find_spec("peft") is None:
        lines.append("trainer.lora: needs the package peft, which is not installed; available with: pip install 'yatt[lora]'")
    for number, part in enumerate(spec.rewards.parts):
        if isinstance(part, GenerativePart):
            lines += _unavailable_judge(f"rewards.parts.{number}", part)
    if isinstance(spec.model, ModelConfigFile | ModelSizes) and not spec.virtual:
        lines.append(
            f"model.kind: {spec.model.kind!r} describes a model without weights; available for training: folder, from_config"
        )
    return lines
