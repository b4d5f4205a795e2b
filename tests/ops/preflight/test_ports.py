"""On which ports the nodes of a run must reach each other, by this machine's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.preflight import ports
from ops.preflight.ports import ports_line, weight_ports
from tests.inputs.example_specs import SPELL, run_spec
from yatt_core.errors import InfrastructureError

VIRTUAL = {"engine": {"kind": "virtual"}}


def test_weights_travel_on_ports_of_the_systems_own_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "RANGE", tmp_path / "range")
    (tmp_path / "range").write_text("40000\t41000\n")
    found = weight_ports(run_spec(SPELL))
    assert found == (40_000, 41_000)
    assert "ports 40000 to 41000" in ports_line(found)
    assert weight_ports(run_spec(SPELL, rollout=VIRTUAL, trainer=VIRTUAL)) is None, "it sends nothing"
    (tmp_path / "range").unlink()
    with pytest.raises(InfrastructureError, match="range: cannot be read"):
        weight_ports(run_spec(SPELL))


def test_a_meeting_is_on_one_of_them() -> None:
    from yatt_core.engines.train.ranks.rendezvous import hold_address, split_address, take_listener

    found = weight_ports(run_spec(SPELL))
    assert found is not None
    host, port = split_address(hold_address())
    take_listener(host, port).close()
    assert found[0] <= port <= found[1]
