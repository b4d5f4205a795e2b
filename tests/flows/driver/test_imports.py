"""The driver and actors without tensors import no torch, which would take a second of their start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.services import ROOT


@pytest.mark.parametrize(
    "modules",
    [
        "flows.launch, flows.train, ops.integrations.trackers",
        "yatt_core.actors.trainer, yatt_core.engines.virtual.trainer",
        "yatt_core.actors.concurrent_rollout, yatt_core.engines.virtual.rollout",
    ],
    ids=["driver", "virtual-trainer", "virtual-rollout"],
)
def test_a_process_without_tensors_imports_no_torch(modules: str) -> None:
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "False"
