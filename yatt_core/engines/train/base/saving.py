"""What a rank contributes to a checkpoint, by subfolder."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from yatt_core.checkpoints.contents import ADAPTERS, CRITIC, CRITIC_OPTIMIZER, OPTIMIZER, REFERENCE, WEIGHTS
from yatt_core.engines.adapters import is_adapter
from yatt_core.engines.train.model.optimizer import moments_of, whole_parts
from yatt_core.engines.train.roles.critic import Critic
from yatt_core.spec.run import RunSpec
from yatt_core.wire.parts import TensorPart

Parts = Iterable[TensorPart[torch.Tensor]]


def saved_parts(
    spec: RunSpec,
    ranks: int,
    weights: Callable[[], Iterable[tuple[str, torch.Tensor]]],
    parts: Callable[[str], Parts],
    steps: int,
    critic: Critic | None,
) -> dict[str, Parts]:
    """Returns a rank's parts; with adapters, merged weights are gathered one by one.

    weights, parts, steps: as those of `PolicyTrainEngine`.
    """
    adapted = spec.trainer.lora is not None
    found: dict[str, Parts] = {WEIGHTS: whole_parts(weights(), ranks) if adapted else parts("weights")}
    if adapted:
        found[ADAPTERS] = (part for part in parts("weights") if is_adapter(part.name))
    found[OPTIMIZER] = moments_of(parts, steps)
    if spec.keeps_reference:
        found[REFERENCE] = parts("reference")
    if critic is not None:
        found[CRITIC] = critic.parts("weights")
        found[CRITIC_OPTIMIZER] = moments_of(critic.parts, critic.steps)
    return found
