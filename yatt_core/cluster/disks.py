"""Which nodes share the disk of a run's folder: found out by a file that one of them creates and the others look for.

Consumes the nodes of the connected cluster; produces the name of each node's disk. The file's name is new, so no file
system has a stale answer about it in its cache.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from yatt_core import durable
from yatt_core.cluster.metering import BytesMeter, metered_get
from yatt_core.cluster.nodes import node_names, on_node
from yatt_core.errors import ConfigurationError

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


def survey(home: Path, seconds: float) -> dict[str, str]:
    """Returns the name of the node that each node of the connected cluster shares the disk of a folder with, by name.

    Each node looks in a folder of its own in `home`, which is deleted afterwards.

    Raises `InfrastructureError` if a node cannot write there or does not answer in time.
    """
    names = node_names()
    folder = str(home / f".disks-{secrets.token_hex(8)}")
    mark = new_mark()
    nodes = sorted(names)

    def ask(function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> list[Any]:
        asked = run_on(nodes, function, arguments)
        return metered_get(BytesMeter(), asked, seconds, f"the nodes to look for {home}")

    try:
        found = ask(disk_of, {node: (folder, mark, node) for node in nodes})
    finally:
        ask(_forget, dict.fromkeys(nodes, (folder,)))
    return {names[node]: names[disk] for node, disk in zip(nodes, found, strict=True)}


def require_one_disk(home: Path, by_node: Mapping[str, str], here: str, url: str | None) -> None:
    """Raises `ConfigurationError` for nodes that do not share a folder with the driver's if there is no object store.

    by_node: as `survey` returns it.
    here: the name of the driver's node.
    """
    apart = sorted(node for node, disk in by_node.items() if disk != by_node.get(here, here))
    if apart and url is None:
        raise ConfigurationError(
            f"{home} on {', '.join(apart)} is not the folder of that name on the driver's node {here}: put YATT_HOME on a "
            "file system that all nodes share, or give the run an object store (storage.url)"
        )


def _forget(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def run_on(nodes: Sequence[str], function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Starts a function once on each node, in a process of its own; returns the references to its results.

    arguments: by node.
    """
    task: Any = ray.remote(num_cpus=0, max_retries=0)(function)
    return [task.options(scheduling_strategy=on_node(node)).remote(*arguments[node]) for node in nodes]
