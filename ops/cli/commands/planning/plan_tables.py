"""Tables that all plans have in common: memory by stage and role, what is missing, and lines below a title."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ops.presentation.output import write, write_table
from ops.presentation.words import size

if TYPE_CHECKING:
    from yatt_core.planning.account import RoleMemory, StageTotal
    from yatt_core.planning.memory.demand import Shortage

TENSORS = ("weights", "gradients", "optimizer", "kv_cache", "activations", "copies")
WITHOUT_CACHE = tuple(name for name in TENSORS if name != "kv_cache")


def print_memory(
    roles: Sequence[RoleMemory], totals: Sequence[StageTotal], owner: str, tensors: Sequence[str] = TENSORS
) -> None:
    """Writes the memory of the fullest device or node, by stage and role.

    owner: what a memory belongs to.
    tensors: the kinds that have a column.
    """
    columns = ("stage", "role", *(name.replace("kv_cache", "KV cache") for name in tensors), "runtime", "total")
    kept = "copies: of weights and state, in transfer or kept"
    write_table(columns, list(_memory_rows(roles, totals, tensors)), f"Memory of the fullest {owner} ({kept})")
    for total in totals:
        if total.host:
            write(f"{total.stage}: {size(total.host)} of {size(total.host_capacity)} host memory")


def print_shortages(shortages: Iterable[Shortage]) -> None:
    """Writes what exceeds its memory."""
    write("")
    for shortage in shortages:
        write(f"{shortage.stage}: {size(shortage.bytes)} more than {shortage.where} has")


def print_lines(title: str, lines: Sequence[str]) -> None:
    """Writes lines below a title; nothing if there are none."""
    if lines:
        write(f"\n{title}")
        for line in lines:
            write(f"  {line}")


def _memory_rows(
    roles: Sequence[RoleMemory], totals: Sequence[StageTotal], names: Sequence[str]
) -> Iterator[tuple[object, ...]]:
    for total in totals:
        for role in roles:
            tensors = role.at(total.stage)
            runtime = role.runtime.get(total.stage, 0)
            if tensors.total or runtime:
                cells = [size(held) if (held := getattr(tensors, name)) else "" for name in names]
                yield (total.stage, role.role, *cells, size(runtime), size(tensors.total + runtime))
        used = total.tensors + total.runtime
        verdict = f"{size(total.short)} too much" if total.short else "fits"
        blanks = [""] * (len(names) + 1)
        yield (total.stage, f"of {size(total.capacity)}: {verdict}", *blanks, size(used))
