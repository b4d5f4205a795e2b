"""The pools file of a home, `HOME/pools.yaml`.

Consumes and produces the file; `yatt queue init` writes a first one for the devices of this machine.
"""

from __future__ import annotations

from pathlib import Path

from flows.queueing.pools import PoolsSpec, load_pools, parse_pools
from flows.run.home import Home
from yatt_core import durable
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import yaml_text

NAME = "pools.yaml"


def pools_file(home: Home) -> Path:
    """Returns the path of the pools file."""
    return home.folder / NAME


def read_pools(home: Home, undeclared: PoolsSpec | None = None) -> PoolsSpec:
    """Returns the pools of a home.

    undeclared: those of a home without a file.

    Raises `ConfigurationError` for a bad file, and if there is none and there are no others.
    """
    path = pools_file(home)
    if not path.exists() and undeclared is not None:
        return undeclared
    if not path.exists():
        raise ConfigurationError(f"{path}: there are no pools yet; `yatt queue init` writes a first file")
    return load_pools(path)


def write_first_pools(home: Home, gpus: int, cores: int) -> PoolsSpec:
    """Writes a pool of this machine's GPUs, or else of its cores. Raises `ConfigurationError` if there is a file."""
    path = pools_file(home)
    if path.exists():
        raise ConfigurationError(f"{path}: already exists; edit it, the scheduler reads it in its next round")
    pool = {"gpus": list(range(gpus))} if gpus else {"devices": cores}
    tree = {"pools": {"main": pool}}
    pools = parse_pools(tree, str(path))
    durable.make_folder(home.folder)
    durable.write_file(path, yaml_text(tree).encode())
    return pools
