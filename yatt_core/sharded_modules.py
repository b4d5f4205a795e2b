"""The modules that FSDP2 gathers as units, and how it adds up their gradients: for all that shards with it (arXiv 2304.11277).

Consumes modules of torch whose library says which parts are not to be split over devices. Produces these parts' names, and
gradients that are sums over the ranks, never means.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule


def unsplit_names(model: nn.Module) -> list[str]:
    """Returns the names of the submodules that the library marks as not to be split over devices; empty if it marks none."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return [name for name, module in model.named_modules() if type(module).__name__ in kinds]


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """Yields the modules that are gathered as a unit."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def add_gradients(model: nn.Module) -> None:
    """Has gradients added up over the ranks, in an order that depends on their number alone, and never averaged."""
    for module in sharded_modules(model):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
