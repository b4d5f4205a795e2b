"""Does a rank hold more than its share of a model while it loads it? Two ranks, over 300 million float32 parameters.

`load_peak_over_share` is the peak growth of private memory in `initialise`, divided by the bytes of the rank's own
parameters, on the worse rank of FSDP2 and of Megatron-Core with tensor parallelism, whichever is worse;
`load_peak_over_share_ENGINE` is each engine's own. A small model is loaded first, so that libraries do not count.
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

from benchmarks.common import progress
from benchmarks.grow.models import FSDP2, MEGATRON, TINY, spec_of, write_model
from benchmarks.grow.ranks import Rank, local_part, on_ranks, policy_of, private_growth
from yatt_core.installed import MEGATRON as MEGATRON_PACKAGE
from yatt_core.installed import has_distribution
from yatt_core.protocols.engines import RankContext, TrainEngine

SIZES: dict[str, Any] = {
    "hidden_size": 1024, "layers": 18, "heads": 16, "key_value_heads": 8, "intermediate_size": 4096,
    "max_positions": 1024,
}  # fmt: skip
VOCABULARY = 32_000
RANKS = 2


def loading_figures(folder: Path, sizes: dict[str, Any] = SIZES) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures and, by engine, each rank's growth and share in bytes.

    sizes: of the model.
    """
    engines = {"fsdp2": FSDP2, "megatron": MEGATRON}
    if not has_distribution(MEGATRON_PACKAGE):
        progress("without the extra megatron, only fsdp2 is measured")
        del engines["megatron"]
    for name, vocabulary, own in (("large", VOCABULARY, sizes), ("small", 256, TINY)):
        # In a process of its own: the weights would stay in this one's memory.
        maker = multiprocessing.get_context("spawn").Process(target=write_model, args=(folder / name, vocabulary, own))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError(f"the {name} model could not be made; see the error above")
    figures = dict[str, float]()
    details = dict[str, Any]()
    for name, engine in engines.items():
        progress(f"loading: {name}")
        found = on_ranks(RANKS, load, engine, folder, sizes)
        figures[f"load_peak_over_share_{name}"] = max(growth / share for growth, share in found)
        details[name] = [{"growth": growth, "share": share} for growth, share in found]
    return {"load_peak_over_share": max(figures.values()), **figures}, details


def load(rank: Rank, engine_spec: dict[str, Any], folder: Path, sizes: dict[str, Any]) -> tuple[int, int]:
    """Returns the peak growth of this rank's private memory, and the bytes of its own parameters."""
    growth = 0
    share = 0
    for name, own in (("small", TINY), ("large", sizes)):
        spec = spec_of(engine_spec, own, prompts=2, prompt=8, response=8)
        engine = rank.engine(spec, RankContext(folder, folder / "inputs", str(folder / name), 0))
        growth = private_growth(engine.initialise)
        share = _own_bytes(engine)
    return growth, share


def _own_bytes(engine: TrainEngine) -> int:
    return sum(local_part(parameter).nbytes for parameter in policy_of(engine).loaded().parameters())
