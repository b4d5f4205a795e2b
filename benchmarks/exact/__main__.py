"""Where does exactness hold, and what does it cost? By engine, type and device, each cell run here or said to be not run.

Consumes nothing. A small model runs the contract: a run is ended and resumed in new engines and compared with an undisturbed one
(torch, FSDP2, Megatron-Core; one rank), or answers alone are compared with those in a crowd (vLLM). Prices are CPU seconds of
iterations, exact and not, in turns in one process; vLLM's on processors is 1 by construction, since `exact` is no setting of it
there. `--write FILE` writes the table from which `yatt plan` takes its prices:

- `holds_DTYPE_ENGINE_DEVICE`: 1 holds, 0 does not, None not run; torch stands for rollout and trainer together;
- `price_DTYPE_ENGINE_DEVICE`: throughput that is not exact, over exact; `aligned_price_DTYPE`: not exact over aligned;
- `aligned_gap_max`: largest difference of log-probabilities between an aligned trainer and its sampler, both types;
- `smallest_batch_DTYPE_vllm_cpu`: fewest prompts whose answers differ from those in a crowd; None if none do, or if not run.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import (
    Report,
    argument_parser,
    file_to_write,
    load_average,
    machine_facts,
    print_report,
    progress,
)
from benchmarks.exact.alignment import aligned_gap_max
from benchmarks.exact.contract import resumed_run_is_the_same, smallest_differing_batch
from benchmarks.exact.work import SEED, TRAINERS, Loop, model_in, spec_of
from yatt_core.engine_environments import VLLM, is_installed, runs_on_accelerators
from yatt_core.installed import MEGATRON, has_distribution
from yatt_core.planning.exact_prices import CPU, CUDA, DEVICES, DTYPES, ENGINES, ExactPrices, written
from yatt_core.spec.sections.accelerated import VllmRollout

ROUNDS = 8
Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where files go, and the device on which engines compute here."""

    folder: Path
    model: Path
    device: str


def key_of(what: str, dtype: str, engine: str, device: str) -> str:
    """Returns the name of a figure."""
    return f"{what}_{dtype}_{engine}_{device}"


def trainers_here() -> list[str]:
    """Returns the trainers that are installed."""
    return [kind for kind in TRAINERS if kind != "megatron" or has_distribution(MEGATRON)]


def measured_cells(place: Place) -> Iterator[tuple[str, float | None]]:
    """Yields the figures of torch, FSDP2 and Megatron-Core on this process's device."""
    for dtype, engine in product(DTYPES, trainers_here()):
        progress(f"{engine} in {dtype}: a run ended and resumed")
        held = resumed_run_is_the_same(spec_of(dtype, engine), _new(place, f"{engine}-{dtype}"), place.model)
        yield key_of("holds", dtype, engine, place.device), float(held)
        progress(f"{engine} in {dtype}: exact and not")
        ways = {"plain": False, "exact": True} | ({"aligned": "aligned"} if aligns(engine, place) else {})
        rates = rates_of(
            {
                name: Loop(spec_of(dtype, engine, exact), place.folder / f"{engine}-{dtype}-{name}", place.model).take
                for name, exact in ways.items()
            }
        )
        yield key_of("price", dtype, engine, place.device), rates["plain"] / rates["exact"]
        if "aligned" in rates:
            yield f"aligned_price_{dtype}", rates["plain"] / rates["aligned"]


def aligns(engine: str, place: Place) -> bool:
    """Returns whether `exact: aligned` covers an engine here."""
    return engine == "torch" and place.device == CPU


def rates_of(work: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns iterations per CPU second of each kind of work, the best of rounds in turns; the first round warms up."""
    seconds = dict.fromkeys(work, float("inf"))
    for number in range(ROUNDS):
        for name, run in work.items():
            started = time.process_time()
            run()
            if number:
                seconds[name] = min(seconds[name], time.process_time() - started)
    return {name: 1.0 / best for name, best in seconds.items()}


def vllm_cells(place: Place) -> Iterator[tuple[str, float | None]]:
    """Yields vLLM's figures: whether answers are the same alone and in a crowd."""
    from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
    from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH

    device = CUDA if runs_on_accelerators(VLLM, None) else CPU
    for dtype in DTYPES:
        progress(f"vLLM in {dtype}: alone and in a crowd")
        spec = VllmRollout(instances=1, dtype=dtype)
        with closing(
            ServedRolloutEngine(VLLM_LAUNCH, str(place.model), spec, max_prompt_tokens=64, max_new_tokens=32)
        ) as engine:
            torch_loop = Loop(spec_of("float32"), place.folder / f"weights-{dtype}", place.model)
            engine.update_weights(dict(torch_loop.trainer.stream_weights()), 0)
            smallest = smallest_differing_batch(engine)
        yield key_of("holds", dtype, "vllm", device), float(smallest is None)
        yield key_of("price", dtype, "vllm", device), vllm_price(device, holds=smallest is None)
        yield key_of("smallest_batch", dtype, "vllm", device), None if smallest is None else float(smallest)


def vllm_price(device: str, holds: bool) -> float | None:
    """Returns what exactness costs vLLM where it holds; None where it is refused, or would have to be measured.

    On processors it is 1 by construction: there `exact` decides whether a spec is refused and is no setting of an engine's
    process, so that there is nothing to compare. On GPUs it switches vLLM's batch-invariant mode on.
    """
    return 1.0 if holds and device == CPU else None


def measure() -> Report:
    """Runs all cells that can run here."""
    load = [load_average()]
    torch.set_num_threads(1)
    figures: Figures = {
        key_of(what, *cell): None for cell in product(DTYPES, ENGINES, DEVICES) for what in ("holds", "price")
    }
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        folder = Path(name)
        place = Place(folder, model_in(folder), CUDA if torch.cuda.is_available() else CPU)
        figures |= dict(measured_cells(place))
        figures["aligned_gap_max"] = None
        tokens = 0
        if place.device == CPU:
            found = [aligned_gap_max(dtype, folder / f"aligned-{dtype}", place.model) for dtype in DTYPES]
            figures["aligned_gap_max"] = max(gap for gap, _ in found)
            tokens = sum(count for _, count in found)
        if is_installed(VLLM, None):
            figures |= dict(vllm_cells(place))
    return Report(
        name="exact",
        figures=figures,
        seeds=[SEED],
        load=[*load, load_average()],
        details={"aligned_tokens": tokens},
    )


def prices_of(figures: Mapping[str, float | None]) -> ExactPrices:
    """Returns the table of the figures."""
    cells = {
        "_".join(cell): {
            "holds": None if (held := figures[key_of("holds", *cell)]) is None else bool(held),
            "price": None if (price := figures[key_of("price", *cell)]) is None else round(price, 2),
        }
        for cell in product(DTYPES, ENGINES, DEVICES)
    }
    aligned = {
        dtype: None if (price := figures.get(f"aligned_price_{dtype}")) is None else round(price, 2) for dtype in DTYPES
    }
    smallest = {dtype: figures.get(key_of("smallest_batch", dtype, "vllm", CPU)) for dtype in DTYPES}
    return ExactPrices.model_validate(
        {
            "processor": machine_facts()["processor"],
            "cells": cells,
            "aligned": aligned,
            "vllm_differs_from": {dtype: None if size is None else int(size) for dtype, size in smallest.items()},
        }
    )


def _new(place: Place, name: str) -> Path:
    folder = place.folder / name
    folder.mkdir()
    return folder


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    # As in a run's actors; vLLM's processes have this environment, and their kernels divide sums among threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser.add_argument("--write", type=file_to_write, metavar="FILE", help="write the table of prices")
    arguments = parser.parse_args()
    report = measure()
    if arguments.write is not None:
        arguments.write.write_text(written(prices_of(report.figures)), encoding="utf-8")
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
