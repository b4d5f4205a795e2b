"""The network device that gloo and NCCL use: the one with the group's address, unless the environment names another."""

from __future__ import annotations

import os
import sys

import pytest

from yatt_core.engines import network
from yatt_core.engines.network import DEVICES, bind_libraries


@pytest.fixture(autouse=True)
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_bound", {})
    for name in DEVICES:
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)


def test_what_the_environment_does_not_name_has_the_group_s_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    bind_libraries("127.0.0.1")
    assert {name: os.environ[name] for name in DEVICES} == {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "=lo"}
    monkeypatch.setattr(network, "network_device", lambda address: "eth7")
    bind_libraries("10.0.0.7")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=eth7", "what was bound here follows the next group"


def test_nobody_looks_for_a_device_where_the_environment_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)  # as where it is not installed
    for name in DEVICES:
        monkeypatch.setenv(name, "ib0")
    bind_libraries("127.0.0.1")
    assert {os.environ[name] for name in DEVICES} == {"ib0"}
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    with pytest.raises(ModuleNotFoundError, match="psutil"):
        bind_libraries("127.0.0.1")
