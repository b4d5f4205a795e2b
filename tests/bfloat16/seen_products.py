"""What reaches the CPU: every product that a model's passes carry out, as an outermost context sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from yatt_core.bfloat16.modules import PRODUCTS

INEXACT = frozenset(
    {
        # Fused attention is handed results of its own again; products with a vector belong to norms, which are float32.
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
        torch.ops.aten.mv,
    }
)
"""Products whose operands may be float32 values."""


@dataclass(frozen=True)
class Seen:
    """A product. exact: whether bfloat16 holds all of its operands' values, or need not."""

    name: str
    types: frozenset[torch.dtype]
    exact: bool


class SeenProducts(TorchDispatchMode):
    """Records products; enter it before anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        into = given.pop("out", None)
        if func.overloadpacket in PRODUCTS:
            found = [each for each in tree_iter((args, given)) if isinstance(each, torch.Tensor)]
            exact = all(torch.equal(each, each.bfloat16().to(each.dtype)) for each in found)
            kinds = frozenset(each.dtype for each in found)
            self.seen.append(Seen(func.overloadpacket.__name__, kinds, exact or func.overloadpacket in INEXACT))
        given |= {} if into is None else {"out": into}
        return func(*args, **given)

    def check_widened(self) -> None:
        """Asserts that there were products, none with operands of bfloat16, and all of them on bfloat16 values."""
        assert self.seen
        assert [each for each in self.seen if torch.bfloat16 in each.types] == []
        assert [each for each in self.seen if not each.exact] == []
