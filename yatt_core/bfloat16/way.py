"""Which way this processor multiplies matrices of bfloat16: with instructions of its own, or widened to float32.

Consumes what torch reports of the processor; produces a `Way`. The processor's features alone decide and never a
measurement: two processes of a run, or a run and its resumption, would otherwise choose differently by chance, and the
ways differ in the last bits.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import torch

Way = Literal["native", "widened"]

INSTRUCTIONS = ("avx512_bf16", "amx_bf16")
"""Names by which torch knows the instructions of x86 processors that multiply bfloat16."""


@lru_cache(maxsize=1)
def way_of_processor() -> Way:
    """Returns how this process multiplies matrices of bfloat16 on its CPU."""
    return chosen_way(_capabilities(), _library_multiplies())


def chosen_way(capabilities: Mapping[str, Any], library: bool) -> Way:
    """Returns the way for a processor.

    capabilities: as returned by `torch.cpu.get_capabilities`.
    library: whether oneDNN multiplies bfloat16 here. It says so of x86 processors that have AVX-512 without these
        instructions as well, where it is slower than in float32; of others only if they have them.
    """
    x86 = capabilities.get("architecture") == "x86_64"
    instructions = not x86 or any(capabilities.get(name) for name in INSTRUCTIONS)
    return "native" if library and instructions else "widened"


def _capabilities() -> Mapping[str, Any]:
    """Returns what `chosen_way` asks for; older versions of torch have a function for each feature."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {
        "architecture": platform.machine(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx_bf16": torch.cpu._is_amx_tile_supported(),
    }


def _library_multiplies() -> bool:
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
