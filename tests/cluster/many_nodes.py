"""A Ray cluster of several nodes on one machine, each with its own raylet and workers, in a separate process.

`python -m tests.cluster.many_nodes NAME...` starts a node for each name, the first one as the head, and prints
`ready ADDRESS`. It then reads commands from standard input, `add NAME` and `kill NAME` (SIGKILL of the raylet, whose
workers end with it), and answers each with `done`. At the end of its input it stops its nodes and exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.services import ROOT

NOTICED_SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
"""By default, Ray takes 15 s to notice that a node is gone."""
OPEN = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Settings without a token, for the cluster and for whoever connects to it; a test before may have left others."""
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}


class ManyNodes:
    """The test's handle on the cluster; a context manager.

    environment: added to this process's environment for all processes of the cluster.
    """

    def __init__(self, names: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.many_nodes", *names],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        word, _, self.address = self._read().partition(" ")
        assert word == "ready", word

    def __enter__(self) -> ManyNodes:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def add(self, name: str) -> None:
        self._tell(f"add {name}")

    def kill(self, name: str) -> None:
        self._tell(f"kill {name}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._read() == "done"

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


def main() -> None:
    from ray.cluster_utils import Cluster

    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray's own output
    head, *others = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "node_name": head, "_system_config": NOTICED_SOON})
    nodes: dict[str, Any] = {head: cluster.head_node}
    try:
        for name in others:
            nodes[name] = cluster.add_node(node_name=name, **NODE)
        say.write(f"ready {cluster.address}\n")
        for line in sys.stdin:
            word, name = line.split()
            if word == "add":
                nodes[name] = cluster.add_node(node_name=name, **NODE)
            else:
                nodes[name].kill_raylet(check_alive=False)
            say.write("done\n")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
