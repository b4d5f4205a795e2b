"""What an actor's process holds: the GPUs that Ray assigned to it, and memory. Each actor reports this once it is loaded."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
import ray

from yatt_core.protocols.receipts import Holdings

VISIBLE = "CUDA_VISIBLE_DEVICES"


def own_holdings() -> Holdings:
    """Returns what this process and its children hold now.

    Memory on a GPU is what torch has reserved in this process.
    """
    private = 0
    for each in (psutil.Process(), *descendants()):
        with suppress(psutil.Error):  # a child may have ended
            memory = each.memory_info()
            private += memory.rss - memory.shared
    gpus = own_gpus()
    return Holdings(gpus, private, _reserved_on_gpu() if gpus else 0)


def descendants() -> list[psutil.Process]:
    """Returns the children of this process, theirs included. Costs nothing for a process that has none, as most actors.

    Looking for them reads all processes of the machine.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # reaps none
    except ChildProcessError:
        return []
    return psutil.Process().children(recursive=True)


def own_gpus() -> tuple[str, ...]:
    """Returns the numbers of the GPUs that this process may use; empty if there are none.

    Ray assigns one to each actor; an instance of several devices also uses its neighbours.
    """
    if not ray.is_initialized():
        return ()
    assigned = tuple(str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))
    visible = tuple(filter(None, os.environ.get(VISIBLE, "").split(",")))
    return visible if set(assigned) < set(visible) else assigned


def _reserved_on_gpu() -> int:
    import torch

    return int(torch.cuda.memory_reserved()) if torch.cuda.is_available() else 0
