"""What weights on their way from the trainer's ranks to the rollout engines take in memory.

Consumes the roles; produces bytes of buckets that a process holds to send or receive them, and of the copies that
ranks keep of what they sent (`trainer.sync: delta`). All of it is host memory; a rank on a GPU also holds buckets there.
"""

from __future__ import annotations

from yatt_core.planning.account import Bytes
from yatt_core.planning.memory.activations import element_bytes
from yatt_core.planning.roles import Roles
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.weights import is_sent_directly, type_sent

BUCKETS = 2
"""Buckets that a process holds on the direct way."""


def weights_sent(roles: Roles) -> int:
    """Returns the bytes of all weights in the type in which they are sent; 0 without a model."""
    if roles.spec.virtual:
        return 0
    lora = roles.spec.trainer.lora
    sent = roles.adapters if lora is not None and lora.sync == "adapter" else round(roles.policy.parameters)
    return sent * element_bytes(type_sent(roles.spec) or "float32")


def bytes_sending(roles: Roles, ranks: int) -> int:
    """Returns the bytes of the buckets that a rank holds in `sync`; through Ray's store, only rank 0 holds any."""
    bucket = roles.spec.trainer.sync_bucket_bytes
    if is_sent_directly(roles.spec):
        return min(weights_sent(roles) // max(1, ranks), BUCKETS * bucket)
    return min(weights_sent(roles), bucket)


def bytes_receiving(roles: Roles) -> int:
    """Returns the bytes of the buckets that an engine holds; those in Ray's store are not the engine's.

    vLLM's processes share memory to which buckets from elsewhere are copied one at a time.
    """
    shared = isinstance(roles.rollout, VllmRollout)
    buckets = BUCKETS if is_sent_directly(roles.spec) else int(shared)
    return min(weights_sent(roles), buckets * roles.spec.trainer.sync_bucket_bytes)


def kept_weights(roles: Roles, ranks: int) -> Bytes:
    """Returns what each rank keeps of what it sent last, also while other roles work."""
    return Bytes(weights=weights_sent(roles) // max(1, ranks) if roles.spec.trainer.sync == "delta" else 0)
