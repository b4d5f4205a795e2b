"""How weights travel from the trainer to the rollout engines, as far as a spec decides it."""

from __future__ import annotations

from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout


def type_sent(spec: RunSpec) -> str | None:
    """Returns the type in which weights are sent, which is that of the rollout engines; None to round nothing.

    Adapters are sent in full precision, since the engines merge them before they round.
    """
    engine = spec.rollout.engine
    lora = spec.trainer.lora
    if isinstance(engine, VirtualRollout) or (lora is not None and lora.sync == "adapter"):
        return None
    return engine.dtype


def refused_transport(spec: RunSpec) -> list[str]:
    """Returns why a new run cannot have the spec's transport; runs of earlier versions that have it go on directly."""
    if spec.trainer.sync_transport == "direct":
        return []
    return [
        "trainer.sync_transport: weights go from the trainer's ranks directly to the engines, and no longer through Ray's "
        "object store; expected direct, for which the nodes must reach each other (`yatt check` says on which ports)"
    ]
