"""A Ray cluster of two hosts: a trainer whose ranks need both meets at the first one's address, and learns the same."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.engines.train.groups import RANKS, broadcast
from tests.engines.train.letters import letters_engine, letters_spec
from tests.hosts.driver import SFT
from tests.hosts.host import NETWORK
from tests.hosts.network import Hosts
from tests.hosts.ray_nodes import SETTINGS, ray_nodes
from yatt_core.engines.train.ranks.rendezvous import hold_address

SECONDS = 300


def learn_here(rank: int, folder: Path) -> None:
    spec = letters_spec(folder, ranks=2, **SFT)
    engine = letters_engine(spec, folder / f"run-{rank}")
    engine.connect(rank, 2, broadcast(folder / "address", hold_address() if rank == 0 else None))
    engine.initialise()
    (folder / f"digest-{rank}").write_text(engine.sft().weights_digest)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_ranks_of_a_run_meet_across_the_nodes_of_a_cluster(two_hosts: Hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with ray_nodes(two_hosts) as address:
        driver = two_hosts["h1"].start(
            [sys.executable, "-m", "tests.hosts.driver", address, str(run)], env={**os.environ, **SETTINGS}
        )
        assert driver.wait(SECONDS) == 0
    found = json.loads((run / "found.json").read_text())
    assert sorted(found["nodes"]) == [f"{NETWORK}1", f"{NETWORK}2"]
    (group,) = found["groups"]
    assert group.startswith(f"tcp://{found['nodes'][0]}:")
    here = tmp_path / "here"
    here.mkdir()
    ranks = [RANKS.Process(target=learn_here, args=(rank, here)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(SECONDS)
    assert {(here / f"digest-{rank}").read_text() for rank in range(2)} == {found["digest"]}
