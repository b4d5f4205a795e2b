"""One rank of a trainer's jobs: `python -m tests.hosts.rank RANK RANKS FOLDER` runs what FOLDER/work.pickle says."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch

from tests.engines.train.groups import run_rank

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[3])
    run_rank(int(sys.argv[1]), int(sys.argv[2]), pickle.loads((folder / "work.pickle").read_bytes()), folder)
