"""Runs Ray's head without two servers that nothing of a run uses.

`python -m yatt_core.cluster.head OPTIONS` takes the options of `ray start`. Ray's client server is left out: drivers are part of
the cluster. So is its API server, which `--include-dashboard=false` leaves running with one module that reports usage; Ray would
wait for it before it starts the raylet. Ray has no options for that, so its functions are replaced in this process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType


def main(arguments: Sequence[str]) -> None:
    """Becomes Ray's head."""
    from ray.scripts import scripts

    leave_out_client_server(scripts)
    leave_out_api_server()
    sys.argv = ["ray", "start", *arguments]
    scripts.main()


def leave_out_client_server(scripts: ModuleType) -> None:
    """Has Ray's command line, in this process, find that its client server cannot run."""
    name = "get_ray_client_dependency_error"
    assert hasattr(scripts, name), "Ray asks another function whether it can start its client server"
    setattr(scripts, name, lambda: "it is left out")


def leave_out_api_server() -> None:
    """Has Ray, in this process, start no API server."""
    from ray._private.node import Node

    name = "start_api_server"
    assert hasattr(Node, name), "Ray starts its API server in another way"
    setattr(Node, name, lambda node, **options: None)


if __name__ == "__main__":
    main(sys.argv[1:])
