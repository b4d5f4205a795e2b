"""How fast does a batch travel through Ray, how evenly are samples balanced by length, and how tightly are they packed?

The batch is 10.5 MB of experience in two halves. Each half goes to a worker, which adds one to every byte and returns
new arrays. YATT sends one object that both workers map, as it does with weights; the comparison, alternating within
one run, is raw Ray with a plain dict of the same arrays for each worker. Each starts with a batch in its own form,
computes the same sums on the same bytes and ends with arrays that the driver can read; the time to pack a dict first
is measured too. Then the benchmark measures balance and packing on log-normal lengths.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.dataplane_worker import Arrays, Worker
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.engines.train.steps.balance import balance_equal, pack
from yatt_core.supervisor.client import ensure_supervisor, stop_supervisor, wait_ready
from yatt_core.wire.packed import PackedArrays, pack_arrays

BATCH_BYTES = 10_500_000
SAMPLES = 512
PROMPT = 64
WORKERS = 2
ROUNDS = 60
WARM_UP = 15
SEEDS = range(10)
REPEATS = 20
CAPACITY = 16_384

Int64 = npt.NDArray[np.int64]


# -- echo ----------------------------------------------------------------------------------------------------------------


def in_one(parts: Sequence[Arrays]) -> PackedArrays:
    """Packs all parts into one object, which is put into the store once and mapped by every worker."""
    return pack_arrays({f"{number}/{name}": array for number, part in enumerate(parts) for name, array in part.items()})


def halves() -> list[Arrays]:
    """Builds the columns of an `ExperienceBatch` and its `PreparedColumns`, 512 ragged samples, split in the middle."""
    rng = np.random.default_rng(0)
    shares = np.exp(rng.normal(0, 0.6, SAMPLES))
    responses = (shares * ((BATCH_BYTES - SAMPLES * (4 * PROMPT + 64)) / 17 / shares.sum())).astype(np.int64)
    return [columns(rng, part) for part in np.split(responses, WORKERS)]


def columns(rng: np.random.Generator, responses: Int64) -> Arrays:
    """Builds the columns of samples with these response lengths."""
    samples = len(responses)
    tokens = int(responses.sum())
    return {
        "ordinals": np.arange(samples) // 8,
        "samples": np.arange(samples, dtype=np.int32) % 8,
        "prompt_tokens": rng.integers(0, 50_000, samples * PROMPT).astype(np.int32),
        "prompt_offsets": np.arange(samples + 1) * PROMPT,
        "response_tokens": rng.integers(0, 50_000, tokens).astype(np.int32),
        "response_offsets": np.concatenate([[0], np.cumsum(responses)]),
        "log_probs_sampler": rng.random(tokens, dtype=np.float32),
        "loss_mask": rng.random(tokens) < 0.9,
        "rewards": rng.random(samples),
        "reward/exact": rng.random(samples),
        "correct": rng.random(samples) < 0.5,
        "truncated": rng.random(samples) < 0.1,
        "weight_versions": np.zeros(samples, dtype=np.int32),
        "advantages": rng.normal(size=samples),
        "log_probs_old": rng.random(tokens, dtype=np.float32),
        "log_probs_ref": rng.random(tokens, dtype=np.float32),
    }


def echo(calls: Iterable[Any], read: Callable[[Any], Arrays]) -> tuple[float, list[Arrays]]:
    """Makes calls one by one; returns the milliseconds until the driver can read all arrays, and the arrays."""
    started = time.perf_counter()
    answers = [read(answer) for answer in ray.get(list(calls))]
    return 1000 * (time.perf_counter() - started), answers


def measure_echo() -> tuple[dict[str, float], dict[str, float]]:
    """Measures YATT and its baselines in milliseconds, on a Ray head that is started as for a run."""
    parts = halves()
    workers = [Worker.remote() for _ in range(WORKERS)]  # type: ignore[attr-defined]
    packed = in_one(parts)
    expected = [{name: array.view(np.uint8) + np.uint8(1) for name, array in part.items()} for part in parts]
    ways: dict[str, Callable[[], tuple[float, list[Arrays]]]] = {
        "raw_ray": lambda: echo((w.plain.remote(part) for w, part in zip(workers, parts, strict=True)), dict),
        "packed": lambda: echo(scattered(workers, lambda: packed), unpacked),
        "packing": lambda: echo(scattered(workers, lambda: in_one(parts)), unpacked),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + ROUNDS):
        for name in sorted(ways, reverse=bool(number % 2)):
            milliseconds, answers = ways[name]()
            if number >= WARM_UP:
                times[name].append(milliseconds)
            else:
                _check(answers, expected)
            del answers
    medians = {name: statistics.median(values) for name, values in times.items()}
    figures = {"echo_10mb_ms": medians["packed"], "echo_ratio_vs_raw_ray": medians["packed"] / medians["raw_ray"]}
    fastest = {f"{name}_fastest_ms": min(values) for name, values in times.items()}
    return figures, {"raw_ray_ms": medians["raw_ray"], "packing_included_ms": medians["packing"], **fastest}


def scattered(workers: Sequence[Any], batch: Callable[[], PackedArrays]) -> Iterator[Any]:
    """Yields one call per worker; before the first, packs the batch and puts it into the store, so that this time counts."""
    reference = ray.put(batch())
    for number, worker in enumerate(workers):
        yield worker.packed.remote(reference, number)


def unpacked(packed: PackedArrays) -> Arrays:
    """Returns views of the received arrays."""
    return packed.arrays()


def _check(answers: Sequence[Arrays], expected: Sequence[Arrays]) -> None:
    for answer, wanted in zip(answers, expected, strict=True):
        for name, array in wanted.items():
            if not np.array_equal(answer[name].view(np.uint8), array):
                raise AssertionError(f"{name} came back changed")


# -- balance and packing -------------------------------------------------------------------------------------------------


def lengths_of(seed: int, count: int) -> Int64:
    """Draws the token counts of `count` samples."""
    draws = np.random.default_rng(seed).lognormal(np.log(600), 1, count)
    return np.clip(np.rint(draws), 16, 8192).astype(np.int64)


def measure_balance(count: int, ranks: int) -> dict[str, float]:
    """Returns the fullest rank divided by the mean, for the worst seed, and the milliseconds of the slowest seed."""
    evenness = []
    times = []
    for seed in SEEDS:
        lengths = lengths_of(seed, count)
        loads = [int(lengths[share].sum()) for share in balance_equal(lengths, ranks)]
        evenness.append(max(loads) / (sum(loads) / ranks))
        times.append(_fastest(lambda lengths=lengths: balance_equal(lengths, ranks)))  # type: ignore[misc]
    name = f"balance_{count}_{ranks}"
    return {name: max(evenness), f"{name}_ms": max(times)}


def measure_packing(count: int) -> dict[str, float]:
    """Returns the bins above the lower bound, for the worst seed and in total, and the milliseconds of the slowest seed."""
    extra = []
    times = []
    for seed in SEEDS:
        lengths = lengths_of(seed, count)
        extra.append(len(pack(lengths, CAPACITY)) - int(-(-lengths.sum() // CAPACITY)))
        times.append(_fastest(lambda lengths=lengths: pack(lengths, CAPACITY)))  # type: ignore[misc]
    name = f"pack_{count}"
    return {
        f"{name}_extra_bins_max": float(max(extra)),
        f"{name}_extra_bins_total": float(sum(extra)),
        f"{name}_ms": max(times),
    }


def _fastest(work: Callable[[], object]) -> float:
    """Returns the milliseconds of the fastest repeat, since other load on the machine only adds to it."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def main() -> None:
    """Runs the benchmark and prints its report."""
    options = argument_parser(__doc__).parse_args()
    before = load_average()
    progress("balance and packing")
    figures = {**measure_balance(512, 8), **measure_balance(8192, 64), **measure_packing(4096)}
    with TemporaryDirectory(prefix="yatt-dataplane-") as folder:
        progress("a Ray head")
        try:
            ensure_supervisor(Path(folder), [ray_head_service(Path(folder))], grace=600)
            head = wait_ready(Path(folder), [SERVICE_NAME], 120).service(SERVICE_NAME)
            connect_ray(head.address, "dataplane", Path(folder))
            progress(f"{ROUNDS} rounds of scatter, work and gather")
            gc.collect()
            transport, baselines = measure_echo()
        finally:
            disconnect_ray()
            stop_supervisor(Path(folder))
    report = Report(
        name="dataplane",
        figures={**transport, **figures},
        seeds=list(SEEDS),
        load=[before, load_average()],
        baselines=baselines,
        details={
            "batch_bytes": sum(array.nbytes for part in halves() for array in part.values()),
            "rounds": ROUNDS,
            "workers": WORKERS,
            "capacity": CAPACITY,
        },
    )
    print_report(report, options.json)


if __name__ == "__main__":
    main()
