"""Failpoints in actors: every Python process below a Ray head with this folder on its path loads this module first.

`YATT_TEST_FAILPOINTS` names the folder. Durable steps are watched at once, methods of actors and engines as soon as
their module has been imported. Python loads only one such file, so the faults of `tests.faults` are added here too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tests.after_import import after_import
from tests.faults.engines import add_faults
from tests.recovery.failpoints import VARIABLE, Failpoints, around, watch_files

AROUND = {
    "yatt_core.actors.rollout": (
        "RolloutActor.begin_update",
        "RolloutActor.take_digest",
        "RolloutActor.receive",
        "RolloutActor.generate",
    ),
    "yatt_core.actors.trainer": ("TrainerActor.prepare", "TrainerActor.learn", "TrainerActor.send"),
    "yatt_core.engines.rollout.torch.engine": ("TorchRolloutEngine.take",),
}
"""Steps of actors other than files."""


def _wrap(failpoints: Failpoints, name: str) -> Callable[[ModuleType], None]:
    def wrap(module: ModuleType) -> None:
        for dotted in AROUND[name]:
            *owners, function = dotted.split(".")
            owner = module
            for part in owners:
                owner = getattr(owner, part)
            around(failpoints.in_actor, owner, function)

    return wrap


if VARIABLE in os.environ:
    _failpoints = Failpoints(Path(os.environ[VARIABLE]))
    watch_files(_failpoints.in_actor, _failpoints.published, _failpoints.synced)
    after_import({name: _wrap(_failpoints, name) for name in AROUND})
after_import({"yatt_core.engines.registry": add_faults})
