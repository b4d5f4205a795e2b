"""Failpoints in actors: every Python process below a Ray head that has this folder on its path loads this first.

Consumes the folder that `YATT_TEST_FAILPOINTS` names. Durable steps are watched at once, methods of actors and engines as
soon as their module has been imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.recovery.failpoints import VARIABLE, Failpoints, around, watch_files

AROUND = {
    "yatt_core.actors.rollout": (
        "RolloutActor.begin_update",
        "RolloutActor.take",
        "RolloutActor.end_update",
        "RolloutActor.generate",
    ),
    "yatt_core.actors.trainer": ("TrainerActor.prepare", "TrainerActor.learn", "TrainerActor.export"),
    "yatt_core.engines.virtual.rollout": ("weights_digest",),
    "yatt_core.engines.rollout.torch.engine": ("TorchRolloutEngine.take",),
}
"""Steps of actors beside files. `weights_digest` is called at the end of a virtual engine's update."""


class _WrapAfterImport(importlib.abc.MetaPathFinder):
    """Lets the others find a module and wraps its functions once it has been executed."""

    def __init__(self, failpoints: Failpoints) -> None:
        self._failpoints = failpoints

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in AROUND:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for dotted in AROUND[name]:
                *owners, function = dotted.split(".")
                owner = module
                for part in owners:
                    owner = getattr(owner, part)
                around(self._failpoints.in_actor, owner, function)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if VARIABLE in os.environ:
    _failpoints = Failpoints(Path(os.environ[VARIABLE]))
    watch_files(_failpoints.in_actor, _failpoints.published, _failpoints.synced)
    sys.meta_path.insert(0, _WrapAfterImport(_failpoints))
