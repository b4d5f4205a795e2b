"""A driver on a host: `python -m tests.hosts.driver ADDRESS FOLDER` starts a run's actors and fine-tunes their trainer.

Writes to FOLDER/found.json the nodes of the ranks, where these have met, and the digest of the weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ray

from tests.engines.train.letters import letters_spec
from tests.waiting import wait_until
from yatt_core.cluster.connect import connect_ray
from yatt_core.cluster.driver_signs import DriverBeat
from yatt_core.cluster.gcs import living_nodes, node_of_actor
from yatt_core.cluster.metering import BytesMeter
from yatt_core.run_actors.actor_registry import TRAINER
from yatt_core.run_actors.run_actors import RunActors

SFT = {"max_steps": 4, "probe_every": 2}
"""What the trainer learns here, and in the test that compares."""
HOSTS = 2
PATIENCE = 120.0


def main() -> None:
    folder = Path(sys.argv[2])
    spec = letters_spec(folder, ranks=2, **SFT)
    connect_ray(sys.argv[1], "run", timeout=PATIENCE)
    wait_until(lambda: len(living_nodes()) == HOSTS, PATIENCE)
    with DriverBeat(1):
        actors = RunActors(spec, folder, 1, 0, BytesMeter())
        try:
            actors.start()
            actors.load(actors.materialise())
            receipt = actors.sft()
            addresses = {node.id: node.address for node in living_nodes()}
            ranks = actors._registry.of(TRAINER)
            nodes = [addresses[node_of_actor(rank._actor_id.hex())] for rank in ranks]
            groups = {state.group for state in ray.get([rank.standing.remote(1) for rank in ranks])}
        finally:
            actors.stop()
    found = {"nodes": nodes, "groups": sorted(groups), "digest": receipt.weights_digest}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
