"""How weights travel from the trainer to the rollout engines, as far as a spec decides it."""

from __future__ import annotations

from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout


def type_sent(spec: RunSpec) -> str | None:
    """Returns the type in which weights are sent, which is that of the rollout engines; None to round nothing.

    Adapters are sent in full precision, since the engines merge them before they round.
    """
    engine, lora = spec.rollout.engine, spec.trainer.lora
    if isinstance(engine, VirtualRollout) or (lora is not None and lora.sync == "adapter"):
        return None
    return engine.dtype
