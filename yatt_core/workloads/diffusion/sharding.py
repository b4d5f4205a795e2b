"""Divides networks of diffusers over the ranks, block by block, with torch's FSDP2 (arXiv 2304.11277).

Consumes a network and torch's process-wide group. Afterwards each parameter is divided over the ranks by rows. A block's are
gathered while it computes, in each pass, so that all ranks must make the same passes. Gradients are summed over the ranks in
an order that depends on their number alone, and never averaged.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from yatt_core.errors import ConfigurationError
from yatt_core.sharded_modules import add_gradients, unsplit_names


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Returns the modules that are gathered one at a time.

    Raises `ConfigurationError` for a network that does not say what its blocks are.
    """
    blocks = [network.get_submodule(name) for name in unsplit_names(network)]
    if not blocks:
        raise ConfigurationError(f"{type(network).__name__} does not say which of its modules are blocks")
    return blocks


def shard_network(network: nn.Module, ranks: int) -> None:
    """Divides each block as a unit of its own, and everything outside of them as one more. In place.

    Raises as `blocks_of` does.
    """
    blocks = blocks_of(network)
    mesh = init_device_mesh("cpu", (ranks,))
    for module in (*blocks, network):
        # The outermost one too: what stayed gathered after a pass without gradients would be out of date after an update.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
    add_gradients(network)
