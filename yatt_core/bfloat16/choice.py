"""Chooses the products of a model on this machine, and looks once a process whether they are as fast as they should be.

Consumes the type and the device of a model's matrices. Produces `Products`; a warning in the log, with rates, if the
products are far slower than those of float32. What is measured changes nothing about the choice (`way.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from yatt_core.bfloat16.products import NATIVE, WIDENED, Products
from yatt_core.bfloat16.way import way_of_processor

log = logging.getLogger(__name__)

SIZE = 256
"""Rows and columns of the matrices that the probe multiplies: a millisecond in float32."""
TIMES = 3
SLOW_SHARE = 1 / 3
"""Rate in bfloat16, relative to that in float32, below which something is wrong. Widening the probe's small matrices,
which a model does for far more products at a time, and a busy machine stay well above it."""


@dataclass(frozen=True, slots=True)
class MatmulRates:
    """Rates of products on one thread, in GFLOP/s: in float32, and in bfloat16 by the chosen products."""

    float32: float
    bfloat16: float

    @property
    def slow(self) -> bool:
        """Whether bfloat16 is far slower than float32."""
        return self.bfloat16 < SLOW_SHARE * self.float32

    def __str__(self) -> str:
        return f"{self.bfloat16:.3g} GFLOP/s in bfloat16, {self.float32:.3g} in float32"


def products_of(dtype: torch.dtype, device: torch.device) -> Products:
    """Returns the products for matrices of a type on a device. Warns once a process if they are slow."""
    if dtype != torch.bfloat16 or device.type != "cpu":
        return NATIVE
    products = own_products()
    _warn_if_slow()
    return products


def own_products() -> Products:
    """Returns the products of bfloat16 on this processor."""
    return WIDENED if way_of_processor() == "widened" else NATIVE


def measured_rates(products: Products) -> MatmulRates:
    """Measures products of small matrices for a few milliseconds."""
    noise = torch.Generator().manual_seed(0)
    left = torch.randn(SIZE, SIZE, generator=noise)
    right = torch.randn(SIZE, SIZE, generator=noise)
    narrow_left = left.bfloat16()
    narrow_right = right.bfloat16()
    return MatmulRates(
        _rate(lambda: torch.matmul(left, right)), _rate(lambda: products.matmul(narrow_left, narrow_right))
    )


def said_of_products(products: Products) -> str:
    """Returns how products of bfloat16 are computed, in a sentence."""
    if products.widens:
        return (
            "products of bfloat16 are widened: this processor has no instructions for them (AVX512-BF16, AMX), so operands "
            "become float32, are multiplied there, and the result is rounded once; that takes about as long as float32, and "
            "longer in modules of transformers with few rows at a time"
        )
    return "products of bfloat16 are native: this processor has instructions for them"


def slow_remark(products: Products, rates: MatmulRates) -> str:
    """Returns what is wrong with rates that are slow, and what to do."""
    return (
        f"products of bfloat16 ({products.way}) are slow: {rates}; set dtype: float32, which is exact and faster here, "
        "or look for what limits the processor (ONEDNN_MAX_CPU_ISA, an emulated processor)"
    )


@lru_cache(maxsize=1)
def _warn_if_slow() -> None:
    products = own_products()
    log.info("%s", said_of_products(products))
    rates = measured_rates(products)
    if rates.slow:
        log.warning("%s", slow_remark(products, rates))


def _rate(multiply: Callable[[], torch.Tensor]) -> float:
    """Returns the best rate of a few products, in GFLOP per second of the thread."""
    multiply()  # the first one makes the kernel
    seconds = []
    for _ in range(TIMES):
        began = time.thread_time()
        multiply()
        seconds.append(time.thread_time() - began)
    return 2.0 * SIZE**3 / 1e9 / max(min(seconds), 1e-9)
