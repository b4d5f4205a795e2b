"""A run's files on nodes that do not share its folder: which nodes these are, and what they need before they can work.

Consumes the cluster's nodes and the run's inputs. Nodes that share the disk of the driver's folder need nothing; the
others get code and inputs from the durable tier, once a node.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ray

from yatt_core.cluster.disks import disk_of, new_mark, require_one_disk, run_on
from yatt_core.cluster.metering import BytesMeter, Interruptions, metered_get
from yatt_core.input_building.arriving import bring_code, bring_inputs
from yatt_core.input_building.given_folders import (
    Folders,
    bring_folders,
    given_folders,
    lacking_folders,
    send_folders,
    senders,
)
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.run_actors.node_logs import LogSource
from yatt_core.spec import RunSpec

log = logging.getLogger(__name__)


class NodeFiles:
    """The disks of a run's nodes.

    seconds: maximum wait for what a node does.
    """

    def __init__(
        self, spec: RunSpec, run_folder: Path, meter: BytesMeter, interruptions: Interruptions, seconds: float
    ) -> None:
        self._spec_json = spec.model_dump_json()
        self._folder = str(run_folder)
        self._url = spec.storage.url
        self._meter = meter
        self._interruptions = interruptions
        self._seconds = seconds
        self._mark = new_mark()
        self._disks = dict[str, str]()
        self._names = dict[str, str]()

    def examine(self, names: Mapping[str, str], avoided: Collection[str]) -> None:
        """Finds out the disks of nodes that were not there before, and brings the run's code to those of their own.

        names: names of the live nodes by id.
        avoided: ids of nodes that get no actors.

        Raises `ConfigurationError` if a node does not share the run's folder and there is no object store.
        """
        self._names = dict(names)
        self._disks = {node: disk for node, disk in self._disks.items() if node in names}
        here = str(ray.get_runtime_context().get_node_id())
        new = sorted(names.keys() - self._disks.keys() - set(avoided) - {here})
        if here not in self._disks:
            self._disks[here] = disk_of(self._folder, self._mark, here) if new else here
        elif new:
            disk_of(self._folder, self._mark, self._disks[here])
        if not new:
            return
        asked = {node: (self._folder, self._mark, node) for node in new}
        found = self._wait(run_on(new, disk_of, asked), "the nodes to look for the run's folder")
        self._disks |= dict(zip(new, found, strict=True))
        apart = [node for node in new if self._disks[node] != self._disks[here]]
        if not apart:
            log.info("%d more nodes share the run's folder", len(new))
            return
        if self._url is None:
            for node in apart:
                del self._disks[node]
            by_node = {names[here]: names[here]} | {names[node]: names[node] for node in apart}
            require_one_disk(Path(self._folder), by_node, names[here], None)
        listed = ", ".join(sorted(names[node] for node in apart))
        log.info("%s: a folder of its own on %s; files travel through %s", self._folder, listed, self._url)
        self._bring(apart, bring_code, ())

    def bring(self, inputs: InputsReceipt) -> None:
        """Brings the run's inputs to every disk that lacks them, and the models that they name to every node.

        Raises as `receive_inputs`, `lacking_folders`, `senders` and `bring_folders` do.
        """
        if self.are_shared:
            return
        self._bring(self._disks, bring_inputs, (inputs.manifest_sha256,))
        if folders := given_folders(Path(self._folder)):
            self._bring_folders(folders)

    @property
    def are_shared(self) -> bool:
        """Whether all nodes share the run's folder."""
        return len(set(self._disks.values())) <= 1

    def disk(self, node: str) -> str:
        """Returns the name of a node's disk; an unknown node's is its own if there is an object store."""
        return self._disks.get(node, node) if self._url is not None else ""

    def by_node(self) -> dict[str, str]:
        """Returns the name of the node that each node shares its disk with, by name; empty if all share one disk."""
        if self.are_shared:
            return {}
        return {self._names[node]: self._names.get(disk, disk) for node, disk in sorted(self._disks.items())}

    def log_sources(self) -> tuple[LogSource, ...]:
        """Returns the disks other than the driver's, each with a node that can be asked for its logs."""
        here = self._disks.get(str(ray.get_runtime_context().get_node_id())) if self._disks else None
        firsts = {self._disks[node]: node for node in sorted(self._disks, reverse=True)}
        return tuple(LogSource(self._names[node], node, disk) for disk, node in sorted(firsts.items()) if disk != here)

    def _bring_folders(self, folders: Folders) -> None:
        nodes = sorted(self._disks)
        asked = run_on(nodes, lacking_folders, dict.fromkeys(nodes, (folders,)))
        lacking = dict(zip(nodes, self._wait(asked, "the nodes to look for the run's models"), strict=True))
        sending = {node: tuple(paths) for node, paths in senders(lacking).items()}
        receiving = {node: tuple(paths) for node, paths in lacking.items() if paths}
        for function, work in ((send_folders, sending), (bring_folders, receiving)):
            calls = {
                node: (self._spec_json, self._folder, {path: folders[path] for path in paths})
                for node, paths in work.items()
            }
            self._wait(
                run_on(list(calls), function, calls), f"{', '.join(self._names[node] for node in calls)}: models"
            )

    def _bring(self, nodes: Collection[str], function: Any, arguments: tuple[Any, ...]) -> None:
        """Runs a function on one node of each disk."""
        firsts = {self._disks[node]: node for node in sorted(nodes, reverse=True)}
        chosen = sorted(firsts.values())
        calls = dict.fromkeys(chosen, (self._spec_json, self._folder, *arguments))
        self._wait(run_on(chosen, function, calls), f"{len(chosen)} nodes to fetch the run's files")

    def _wait(self, asked: list[Any], what: str) -> list[Any]:
        return metered_get(
            meter=self._meter,
            references=asked,
            timeout=self._seconds,
            waiting_for=what,
            interruptions=self._interruptions,
        )
