"""What the nodes of one engine are told: which workers each has, where they meet, and on which network."""

from __future__ import annotations

import pytest

from yatt_core.engines.network import DEVICES
from yatt_core.engines.rollout.vllm.environment import TUNABLES, engine_environment
from yatt_core.errors import InfrastructureError


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
