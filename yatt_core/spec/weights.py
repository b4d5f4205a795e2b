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


STORE_BUCKETS = 3
"""Buckets in Ray's object store at a time: one that the engines take, the next one, and one that is being dropped."""


def is_sent_directly(spec: RunSpec) -> bool:
    """Returns True if weights go from the trainer's ranks to the engines without Ray's object store."""
    trainer = spec.trainer
    return (
        trainer.sync_transport == "direct"
        and trainer.lora is None
        and not isinstance(spec.rollout.engine, VirtualRollout)
    )


def bucket_bytes_in_store(spec: RunSpec) -> int:
    """Returns the most bytes of weights that Ray's object store holds at a time."""
    return 0 if is_sent_directly(spec) else STORE_BUCKETS * spec.trainer.sync_bucket_bytes
