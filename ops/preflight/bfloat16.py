"""How this machine multiplies bfloat16, if a run would: said before it starts, with rates.

Consumes a spec. Imports torch only for a run that computes in bfloat16 on this machine's cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from yatt_core.engines.environment import bfloat16_roles
from yatt_core.spec import RunSpec

ALIGNED_PRODUCTS = "exact: aligned multiplies bfloat16 values in float32 on every processor, and rounds the result once"


@dataclass(frozen=True, slots=True)
class Bfloat16Products:
    """Products of bfloat16 on this machine; everything is empty if a run makes none here.

    facts: the engines' keys in the spec (`roles`), `native` or `widened` (`way`), and rates on small matrices in
        GFLOP/s (`float32`, `bfloat16`).
    lines: all of this in a sentence; of an aligned run that alone.
    warnings: what is wrong with the rates.
    """

    facts: dict[str, list[str] | str | float] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def bfloat16_products(spec: RunSpec) -> Bfloat16Products:
    """Returns how this machine multiplies bfloat16.

    Nothing for a run without it, for one on GPUs, and for one on a cluster that exists, whose processors are not known here.
    """
    from flows.driver.attachment import attached

    roles = bfloat16_roles(spec)
    if not roles or attached():
        return Bfloat16Products()
    if spec.aligned:
        return Bfloat16Products(lines=[f"{', '.join(roles)}: {ALIGNED_PRODUCTS}"])
    import torch

    from yatt_core.bfloat16.choice import measured_rates, own_products, said_of_products, slow_remark

    if torch.cuda.is_available():
        return Bfloat16Products()
    products = own_products()
    rates = measured_rates(products)
    named = ", ".join(roles)
    return Bfloat16Products(
        facts={"roles": roles, "way": products.way, "float32": rates.float32, "bfloat16": rates.bfloat16},
        lines=[f"{named}: {said_of_products(products)} ({rates})"],
        warnings=[f"{named}: {slow_remark(products, rates)}"] if rates.slow else [],
    )
