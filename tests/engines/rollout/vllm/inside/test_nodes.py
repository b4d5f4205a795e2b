"""vLLM's own settings for each node of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.rollout.cases import build_model
from yatt_core.engines.rollout.served.engine import process_settings
from yatt_core.engines.rollout.served.span import Span
from yatt_core.engines.rollout.vllm.settings import settings_of
from yatt_core.spec.sections.accelerated import VllmRollout


@pytest.mark.usefixtures("vllm_here")  # restores the environment
def test_each_node_has_its_share_of_the_workers(tmp_path: Path) -> None:
    from yatt_core.engines.rollout.vllm.opening import engine_config

    build_model(tmp_path, "paired")
    spec = VllmRollout(dtype="float32", tensor_parallel_size=2, pipeline_parallel_size=2)
    engine = settings_of(process_settings(spec))
    for rank in range(2):
        span = Span(2, rank, "192.0.2.1", 4711, f"192.0.2.{rank + 1}")
        found = engine_config(str(tmp_path), engine, 64, span).parallel_config
        assert (found.nnodes, found.node_rank, found.local_world_size) == (2, rank, 2)
        assert (found.master_addr, found.master_port) == ("192.0.2.1", 4711)
        assert found.assigned_physical_gpu_ids == [0, 1], "vLLM takes it for the workers of one node"
    alone = engine_config(str(tmp_path), engine, 64, None).parallel_config
    assert (alone.nnodes, alone.local_world_size) == (1, 4)
