"""One rank of a meeting: `python -m tests.hosts.meeting RANK ADDRESS-FILE HOST` prints as JSON what it sees.

Rank 0 meets rank 1 at HOST. The sums are those of both groups; `listens` are the addresses on which it listens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import torch
from torch import distributed

from yatt_core.engines.network import DEVICES
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import close_process_group, open_process_group
from yatt_core.engines.train.ranks.rendezvous import hold_address


def main() -> None:
    rank = int(sys.argv[1])
    file = Path(sys.argv[2])
    host = sys.argv[3]
    if rank == 0:
        file.with_suffix(".writing").write_text(hold_address(host))
        file.with_suffix(".writing").rename(file)
    while not file.exists():
        time.sleep(0.05)
    group = Collective()
    group.connect(rank, 2, file.read_text())
    own = group.sum(torch.tensor([float(rank + 1)]))
    open_process_group(group)
    process_wide = torch.tensor([float(rank + 1)])
    distributed.all_reduce(process_wide)
    connections = psutil.Process(os.getpid()).net_connections("inet")
    listens = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    group.barrier()
    close_process_group()
    found = {"sums": [float(own), float(process_wide)], "listens": sorted(listens)}
    sys.stdout.write(json.dumps(found | {"devices": [os.environ[name] for name in DEVICES]}))


if __name__ == "__main__":
    main()
