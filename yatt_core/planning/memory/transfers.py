"""What weights on their way from the trainer's ranks to the rollout engines take in memory.

Consumes the roles; produces bytes of buckets that a process holds to send or receive them, and of the copies that
ranks keep of what they sent, and vLLM engines of their weights (`trainer.sync: delta`). All of it is host memory; a rank
on a GPU also holds buckets there.
"""

from __future__ import annotations

from yatt_core.planning.account import Bytes
from yatt_core.planning.memory.activations import element_bytes
from yatt_core.planning.roles import Roles
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.weights import type_sent

BUCKETS = 2
"""Buckets that a process holds to send or receive."""


def weights_sent(roles: Roles) -> int:
    """Returns the bytes of all weights in the type in which they are sent; 0 without a model."""
    if roles.spec.virtual:
        return 0
    lora = roles.spec.trainer.lora
    sent = roles.adapters if lora is not None and lora.sync == "adapter" else round(roles.policy.parameters)
    return sent * element_bytes(type_sent(roles.spec) or "float32")


def senders(roles: Roles, ranks: int) -> int:
    """Returns how many ranks send: all of them, but only rank 0 sends weights that are merged with adapters."""
    lora = roles.spec.trainer.lora
    return max(1, ranks) if lora is None or lora.sync == "adapter" else 1


def bytes_sending(roles: Roles, ranks: int) -> int:
    """Returns the bytes of the buckets that a rank that sends holds in `sync`."""
    return min(weights_sent(roles) // senders(roles, ranks), BUCKETS * roles.spec.trainer.sync_bucket_bytes)


def bytes_receiving(roles: Roles) -> int:
    """Returns the bytes of the buckets that an engine holds, and of its copy."""
    return _copied(roles) + min(weights_sent(roles), BUCKETS * roles.spec.trainer.sync_bucket_bytes)


def bytes_between_updates(roles: Roles) -> int:
    """Returns what an engine keeps of `bytes_receiving`: the memory that vLLM's processes share."""
    if not isinstance(roles.rollout, VllmRollout):
        return 0
    return _copied(roles) or bytes_receiving(roles)


def _copied(roles: Roles) -> int:
    """Returns the bytes of the copy of its weights to which a vLLM engine applies changes."""
    delta = roles.spec.trainer.sync == "delta"
    return weights_sent(roles) if delta and isinstance(roles.rollout, VllmRollout) else 0


def kept_weights(roles: Roles, ranks: int) -> Bytes:
    """Returns what each rank keeps of what it sent last, also while other roles work."""
    return Bytes(weights=weights_sent(roles) // max(1, ranks) if roles.spec.trainer.sync == "delta" else 0)
