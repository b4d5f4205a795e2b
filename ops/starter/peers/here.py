"""Engines and devices of this machine in place of those of a peer's file: torch, on as many devices as `yatt init` takes.

Consumes a translation. Produces one whose lists say what no longer holds. Raises `ConfigurationError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil

from ops.starter.looks import ModelLook
from ops.starter.peers.entries import KeyVerdict, List
from ops.starter.peers.translating import Translation
from ops.starter.sizes import fitting_devices
from yatt_core.cluster.gpus import local_gpus
from yatt_core.errors import ConfigurationError

ENGINES = ("rollout.engine", "trainer.engine")
KEPT = ("trainer.engine.dtype", "trainer.engine.micro_batch_tokens", "rollout.engine.dtype")
"""Keys of engines that torch has as well."""
WHY = "--here takes its place"


def on_this_machine(translation: Translation, model: ModelLook | None) -> Translation:
    """Returns a translation whose engines run here.

    model: what is known of the model; None if its files are not here.
    """
    if model is None:
        raise ConfigurationError(
            "--here: the number of devices follows from the model, which is no folder here; name one with --model"
        )
    cores = len(os.sched_getaffinity(0))
    devices = fitting_devices(len(local_gpus()), cores, psutil.virtual_memory().total, model.parameters)
    lists: dict[List, list[KeyVerdict]] = {name: [] for name in List}
    for name, verdicts in translation.lists.items():
        for verdict in verdicts:
            changed = _without_engines(verdict)
            moved = name is List.TAKEN and changed is not verdict
            lists[List.DIFFERENT if moved else name].append(changed)
    defaults = [kept for verdict in translation.defaults if (kept := _without_engines(verdict)).to or kept is verdict]
    return replace(translation, tree=_tree(translation.tree, devices), lists=lists, defaults=defaults)


def _tree(tree: Mapping[str, Any], devices: int) -> dict[str, Any]:
    trainer = dict(tree["trainer"])
    kept = {key: value for key, value in trainer["engine"].items() if f"trainer.engine.{key}" in KEPT}
    trainer["engine"] = {"kind": "torch", "ranks": devices, **kept}
    rollout = dict(tree.get("rollout", {}))
    if "engine" in rollout:
        dtype = {"dtype": rollout["engine"].get("dtype", "bfloat16")}
        rollout["engine"] = {"kind": "torch", "instances": devices, **dtype}
    return {**tree, "trainer": trainer, **({"rollout": rollout} if rollout else {})}


def _without_engines(verdict: KeyVerdict) -> KeyVerdict:
    """Returns a verdict without what it wrote into engines; itself if it wrote nothing there that is not kept."""
    gone = list(_of_engines(list(verdict.to)))
    if not gone:
        return verdict
    left = {path: value for path, value in verdict.to.items() if path not in gone}
    return replace(verdict, to=left, why=f"{verdict.why}; {WHY}" if left and verdict.why else WHY)


def _of_engines(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if path not in KEPT and (path in ENGINES or path.startswith(tuple(f"{engine}." for engine in ENGINES))):
            yield path
