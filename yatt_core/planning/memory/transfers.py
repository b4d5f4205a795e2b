"""What weights on their way from the trainer's ranks to the rollout engines take in memory.

Consumes the roles, and whether weights go from GPU to GPU. Produces bytes of the buckets that a process holds to send or receive
them, and of the copies that ranks keep of what they sent, and vLLM engines of their weights (`trainer.sync: delta`).
The copies are in host memory. Buckets are where they are sent from and where they arrive; from a GPU, those that are not taken by
a torch engine go on to host memory, one at a time. Changes are found and applied in host memory.
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
    return OnTheWay(device=buckets + _checked(buckets), host=buckets if _sends_changes(roles) else 0)


def receiving(roles: Roles, by_gpu: bool) -> OnTheWay:
    """Returns what an engine holds, with its copy. by_gpu: whether the weights go from GPU to GPU."""
    copied = _copied(roles)
    buckets = _arriving(roles, BUCKETS)
    if not by_gpu:
        return OnTheWay(host=copied + buckets)
    stays = _stays_on_gpu(roles)
    on_host = BUCKETS if _sends_changes(roles) else int(not stays)
    device = buckets + (_checked(buckets) if stays else 0)
    return OnTheWay(device=device, host=copied + _arriving(roles, on_host))


def bytes_between_updates(roles: Roles, by_gpu: bool) -> int:
    """Returns what an engine keeps in host memory between updates: the memory that vLLM's processes share.

    by_gpu: whether the weights go from GPU to GPU.
    """
    if not isinstance(roles.rollout, VllmRollout):
        return 0
    return _copied(roles) or _arriving(roles, 1 if by_gpu else BUCKETS)


def _arriving(roles: Roles, buckets: int) -> int:
    """Returns the bytes of so many buckets with which an engine receives weights."""
    return min(weights_sent(roles), buckets * roles.spec.trainer.sync_bucket_bytes)


def _checked(nbytes: int) -> int:
    """Returns what a GPU takes while it adds up the digests of buckets, of which there are this many bytes."""
    return min(nbytes, CHECKED_BYTES)


def _stays_on_gpu(roles: Roles) -> bool:
    """Returns True if engines take buckets where they have arrived: torch engines do, unless they get adapters to merge."""
    lora = roles.spec.trainer.lora
    return not isinstance(roles.rollout, VllmRollout) and (lora is None or lora.sync == "merged")


def _sends_changes(roles: Roles) -> bool:
    return roles.spec.trainer.sync == "delta"


def _copied(roles: Roles) -> int:
    """Returns the bytes of the copy of its weights to which a vLLM engine applies changes."""
    return weights_sent(roles) if _sends_changes(roles) and isinstance(roles.rollout, VllmRollout) else 0


def kept_weights(roles: Roles, ranks: int) -> Bytes:
    """Returns what each rank keeps of what it sent last, also while other roles work."""
    return Bytes(weights=weights_sent(roles) // max(1, ranks) if _sends_changes(roles) else 0)
