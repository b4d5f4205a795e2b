"""Which nodes share the disk of a run's folder: found out by a file that one of them creates and the others look for.

Consumes the nodes of the connected cluster; produces the name of each node's disk. The file's name is new, so no file
system has a stale answer about it in its cache.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from yatt_core import durable
from yatt_core.cluster.nodes import on_node

_MARK = ".disk-"
_OLD_SECONDS = 86_400.0
"""Age at which marks of earlier starts are deleted."""


def new_mark() -> str:
    """Returns the name of a mark that no node has seen before."""
    return f"{_MARK}{secrets.token_hex(8)}"


def disk_of(folder: str, mark: str, node: str) -> str:
    """Returns the name of a node's disk: the node that was the first to look for this mark there. Runs on the node.

    folder: the run's folder, which is created if it is missing.

    Raises `InfrastructureError` if the folder cannot be created or written to.
    """
    place = Path(folder)
    durable.make_folder(place)
    with durable.refusals(f"{place}: cannot be written to on this node"):
        temporary = durable.temporary_name(place / mark)
        temporary.write_text(node)
        try:
            os.link(temporary, place / mark)  # appears whole, or not at all
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        found = (place / mark).read_text()
        for other in place.glob(f"{_MARK}*"):
            if other.name != mark and other.stat().st_mtime < time.time() - _OLD_SECONDS:
                other.unlink(missing_ok=True)
    return found


def run_on(nodes: Sequence[str], function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Starts a function once on each node, in a process of its own; returns the references to its results.

    arguments: by node.
    """
    task: Any = ray.remote(num_cpus=0, max_retries=0)(function)
    return [task.options(scheduling_strategy=on_node(node)).remote(*arguments[node]) for node in nodes]
