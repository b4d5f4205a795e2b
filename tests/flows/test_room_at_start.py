"""Before anything is loaded, the start looks whether the cluster's nodes have memory for the run, and how its roles share it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flows.driver import actors_start
from flows.driver.actors_start import FleetStart
from tests.services import ROOT
from yatt_core.cluster.devices import Device
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec

MIB = 1 << 20
SPEC = load_spec(ROOT / "configs" / "genrm.yaml", ["rollout.batch_samples=256"])


def start(monkeypatch: pytest.MonkeyPatch, mib: int) -> tuple[FleetStart, list[str]]:
    """On a node of two cores with so much memory, as Ray tells it. Says what the observer hears."""
    said: list[str] = []
    devices = tuple(Device(number, "core", "a", f"a:core{number}", memory=mib * MIB // 2) for number in range(2))
    monkeypatch.setattr(actors_start, "inventory", lambda: devices)
    observer = SimpleNamespace(stage=said.append, warned=said.append)
    session: Any = SimpleNamespace(spec=SPEC, observer=observer)
    return FleetStart(session), said


@pytest.mark.parametrize(
    ("mib", "resident", "says"),
    [(8192, True, []), (3472, False, ["sleep while others work"]), (0, True, ["nobody looked whether it suffices"])],
)
def test_roles_share_the_memory_there_is(
    monkeypatch: pytest.MonkeyPatch, mib: int, resident: bool, says: list[str]
) -> None:
    begun, said = start(monkeypatch, mib)
    assert begun._account() is resident
    assert begun.devices == 2
    assert len(said) == len(says) and all(words in heard for words, heard in zip(says, said, strict=True))


def test_a_run_without_room_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no room on 2xcore"):
        start(monkeypatch, 1024)[0]._account()
