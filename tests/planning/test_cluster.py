"""Devices: descriptions of clusters, built-in cards, custom cards, and this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.trees import tells
from yatt_core.errors import ConfigurationError
from yatt_core.planning import cluster as devices
from yatt_core.planning.cluster import card_of, local_cluster, parse_cluster, read_cards

CARDS = read_cards()


@pytest.mark.parametrize(
    ("text", "per_node", "nodes", "card"),
    [
        ("8xH200", 8, 1, "H200"),
        ("8xH200,16 nodes", 8, 16, "H200"),
        ("8xH200, 1 node", 8, 1, "H200"),
        ("16x8xH100", 8, 16, "H100"),
        ("4x a100-80", 4, 1, "A100-80"),
        ("2xcore", 2, 1, "core"),
    ],
)
def test_descriptions(text: str, per_node: int, nodes: int, card: str):
    found = parse_cluster(text, CARDS)
    assert (found.devices_per_node, found.nodes, found.card_name) == (per_node, nodes, card)
    assert found.devices == per_node * nodes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H200", r"--cluster .*8xH200"),
        ("8xH2000", "'H2000'; did you mean H200"),
        ("8xA100", "'A100'; did you mean A100-40 or A100-80?"),
        ("٨xH200", r"--cluster .*8xH200"),
        ("8xabacus", "known: A100-40"),
        ("0xH200", "--cluster 0xH200: .* one device"),
        ("1000001xH200", "at most 1000000 devices"),
        ("1000x1001xH200", "at most 1000000 devices"),
        (f"{'9' * 5000}xH200", "at most 1000000 devices"),
    ],
)
def test_an_invalid_description_is_refused(text: str, says: str):
    with pytest.raises(ConfigurationError, match=says):
        parse_cluster(text, CARDS)


def test_the_known_cards():
    assert {"A100-40", "A100-80", "H100", "H200", "H20", "B200", "L40S", "RTX-4090", "MI300X", "core"} == set(CARDS)
    assert all(card.source for card in CARDS.values())


def test_custom_cards(tmp_path: Path):
    text = (Path(devices.__file__).parent / "cards.yaml").read_text().replace("\nH100:", "\nTX1:")
    (tmp_path / "cards.yaml").write_text(text)
    assert parse_cluster("2xTX1", read_cards(tmp_path / "cards.yaml")).card == CARDS["H100"]
    (tmp_path / "wrong.yaml").write_text("TX1: {memory_gb: 80, flop: 1.0e+12}\nTX2: 80")
    with pytest.raises(ConfigurationError) as error:
        read_cards(tmp_path / "wrong.yaml")
    lines = str(error.value).splitlines()
    assert any(tells(line, f"{tmp_path}/wrong.yaml: TX1.flops: ", "missing") for line in lines)
    assert f"{tmp_path}/wrong.yaml: TX1.flop: unknown key; did you mean 'flops'?" in lines
    assert tells(lines[-1], f"{tmp_path}/wrong.yaml: TX2: ", "mapping", "given: 80")


def test_a_card_is_found_by_the_drivers_name_and_the_memory():
    assert card_of("NVIDIA A100-SXM4-80GB", 85_899_345_920, CARDS) == "A100-80"
    assert card_of("NVIDIA A100-SXM4-40GB", 42_949_672_960, CARDS) == "A100-40"
    assert card_of("NVIDIA H200", 150_754_820_096, CARDS) == "H200"
    assert card_of("NVIDIA GeForce RTX 4090", 25_757_220_864, CARDS) == "RTX-4090"
    assert card_of("Abacus", 1, CARDS) is None


def test_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "local_gpus", list)
    cores = local_cluster(CARDS)
    assert cores.card_name == "core"
    assert cores.host_memory == 0, "its cores share the host's memory, and there is no other"
    monkeypatch.setattr(devices, "local_gpus", lambda: [("NVIDIA H100 80GB HBM3", 85_520_809_984)] * 4)
    assert str(local_cluster(CARDS)) == "4xH100"
    monkeypatch.setattr(
        devices, "local_gpus", lambda: [("NVIDIA H100", 85_520_809_984), ("NVIDIA L40S", 48_305_799_168)]
    )
    with pytest.raises(ConfigurationError, match=r"NVIDIA H100 and NVIDIA L40S.*--cluster"):
        local_cluster(CARDS)
    monkeypatch.setattr(devices, "local_gpus", lambda: [("Abacus", 1)])
    with pytest.raises(ConfigurationError, match=r"Abacus .*--cards FILE"):
        local_cluster(CARDS)
