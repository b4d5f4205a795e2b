"""What the nodes of one engine are told: which workers each has, where they meet, and on which network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.rollout.cases import build_model
from tests.needs import NEEDS_VLLM
from yatt_core.engines.network import DEVICES
from yatt_core.engines.rollout.vllm.environment import TUNABLES, engine_environment
from yatt_core.engines.rollout.vllm.span import Span
from yatt_core.errors import InfrastructureError
from yatt_core.spec.sections.accelerated import VllmRollout


@NEEDS_VLLM
@pytest.mark.usefixtures("vllm_here")  # restores the environment
def test_each_node_has_its_share_of_the_workers(tmp_path: Path) -> None:
    from yatt_core.engines.rollout.vllm.opening import engine_config

    build_model(tmp_path, "paired")
    engine = VllmRollout(dtype="float32", tensor_parallel_size=2, pipeline_parallel_size=2)
    for rank in range(2):
        span = Span(2, rank, "192.0.2.1", 4711, f"192.0.2.{rank + 1}")
        found = engine_config(str(tmp_path), engine, 64, span).parallel_config
        assert (found.nnodes, found.node_rank, found.local_world_size) == (2, rank, 2)
        assert (found.master_addr, found.master_port) == ("192.0.2.1", 4711)
        assert found.assigned_physical_gpu_ids == [0, 1], "vLLM takes it for the workers of one node"
    alone = engine_config(str(tmp_path), engine, 64, None).parallel_config
    assert (alone.nnodes, alone.local_world_size) == (1, 4)


def test_an_engine_over_several_nodes_uses_the_network_of_its_node_s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DEVICES:
        monkeypatch.delenv(name, raising=False)
    found = engine_environment(processors=True, address="127.0.0.1")
    assert [found[name] for name in ("VLLM_HOST_IP", *DEVICES)] == ["127.0.0.1", "lo", "=lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert engine_environment(processors=True, address="127.0.0.1")["GLOO_SOCKET_IFNAME"] == "ib0"
    assert engine_environment(processors=True)["GLOO_SOCKET_IFNAME"] == "lo", "one node has no need of a network"
    with pytest.raises(InfrastructureError, match=r"192\.0\.2\.1"):
        engine_environment(processors=True, address="192.0.2.1")


def test_settings_of_the_c_library_are_kept_beside_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TUNABLES, raising=False)
    assert TUNABLES not in engine_environment(processors=False)
    own = engine_environment(processors=True)[TUNABLES]
    monkeypatch.setenv(TUNABLES, "glibc.malloc.arena_max=2")
    assert engine_environment(processors=True)[TUNABLES] == f"{own}:glibc.malloc.arena_max=2"
    assert engine_environment(processors=False)[TUNABLES] == "glibc.malloc.arena_max=2"
