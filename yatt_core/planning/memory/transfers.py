"""What weights on their way from the trainer's ranks to the rollout engines take in memory.

Consumes the roles, and whether weights go from GPU to GPU. Produces bytes of the buckets that a process holds to send or receive
them, and of the copies that ranks keep of what they sent, and vLLM engines of their weights (`trainer.sync: delta`).
The copies are in host memory. Buckets are where they are sent from and where they arrive. A rank finds changes a few numbers at a
time and writes them into a bucket, which has room for whole weights. An engine applies them in host memory, and weights that its
actor merges with adapters go to vLLM's processes through it.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.planning.account import Bytes
from yatt_core.planning.memory.activations import element_bytes
from yatt_core.planning.roles import Roles
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.weights import type_sent
from yatt_core.wire.bit_sums import BLOCK_BYTES, DEVICE_BLOCKS

BUCKETS = 2
"""Buckets that a process holds to send or receive."""
CHECKED_BYTES = 2 * DEVICE_BLOCKS * BLOCK_BYTES
"""What a GPU takes at most while it adds up the digest of a bucket."""


@dataclass(frozen=True, slots=True)
class OnTheWay:
    """What a process holds in `sync` of weights on their way, in bytes.

    device: on its GPU.
    host: in host memory.
    """

    device: int = 0
    host: int = 0


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


def sending(roles: Roles, ranks: int, by_gpu: bool) -> OnTheWay:
    """Returns what a rank that sends holds. by_gpu: whether the weights go from GPU to GPU."""
    buckets = bytes_sending(roles, ranks)
    if not by_gpu:
        return OnTheWay(host=buckets)
    return OnTheWay(device=buckets + _checked(buckets))


def receiving(roles: Roles, by_gpu: bool) -> OnTheWay:
    """Returns what an engine holds, with its copy. by_gpu: whether the weights go from GPU to GPU."""
    held = _copied(roles) + _merged(roles)
    buckets = min(weights_sent(roles), BUCKETS * roles.spec.trainer.sync_bucket_bytes)
    if not by_gpu:
        return OnTheWay(host=held + buckets)
    device = buckets + _checked(buckets) + _assembled(roles)
    return OnTheWay(device=device, host=held + (buckets if _sends_changes(roles) else 0))


def bytes_between_updates(roles: Roles, by_gpu: bool) -> int:
    """Returns what an engine keeps in host memory between updates: the memory that vLLM's processes share.

    by_gpu: whether the weights go from GPU to GPU.
    """
    if not isinstance(roles.rollout, VllmRollout):
        return 0
    held = _copied(roles) + _merged(roles)
    return held if held or by_gpu else receiving(roles, by_gpu).host


def _checked(nbytes: int) -> int:
    """Returns what a GPU takes while it adds up the digests of buckets, of which there are this many bytes."""
    return min(nbytes, CHECKED_BYTES)


def _assembled(roles: Roles) -> int:
    """Returns the bytes of vLLM's largest module, fused matrices or embeddings, whose tensors a worker assembles on its GPU.

    Weights that come from host memory are assembled there.
    """
    if not isinstance(roles.rollout, VllmRollout) or _copied(roles) or _merged(roles):
        return 0
    shape = roles.policy
    return max(shape.embedding_parameters, 2 * shape.hidden * shape.intermediate) * element_bytes(roles.rollout.dtype)


def _merged(roles: Roles) -> int:
    """Returns the bytes of a bucket of weights that an actor merges with adapters, in float32, for vLLM's processes."""
    lora = roles.spec.trainer.lora
    if not isinstance(roles.rollout, VllmRollout) or lora is None or lora.sync == "merged":
        return 0
    return min(round(roles.policy.parameters) * element_bytes("float32"), roles.spec.trainer.sync_bucket_bytes)


def _sends_changes(roles: Roles) -> bool:
    return roles.spec.trainer.sync == "delta"


def _copied(roles: Roles) -> int:
    """Returns the bytes of the copy of its weights to which a vLLM engine applies changes."""
    return weights_sent(roles) if _sends_changes(roles) and isinstance(roles.rollout, VllmRollout) else 0


def kept_weights(roles: Roles, ranks: int) -> Bytes:
    """Returns what each rank keeps of what it sent last, also while other roles work."""
    return Bytes(weights=weights_sent(roles) // max(1, ranks) if _sends_changes(roles) else 0)
