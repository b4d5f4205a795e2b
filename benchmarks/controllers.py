"""Do heavy samples stay out of the driver, and what is gained compared with one central controller?

Consumes nothing: writes images of 1 to 4 MB as files, 16 MB to 2 GB per iteration, and starts its own Ray head. The
same engines and trainer ranks process every byte of every image, in turn through the product's data plane, through a
central controller in the classic design, and through one that forwards single batches without waiting.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.payload.actors import TERM
from benchmarks.payload.coordination import coordinate_ms
from benchmarks.payload.drivers import ACTORS, CENTRAL, PIPELINED, SHARDED, DriverProcess, Iteration, Place
from benchmarks.payload.images import Look, look_at, make_images, read_image
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.spec import load_spec
from yatt_core.supervisor.client import Heartbeat, ensure_supervisor, stop_supervisor, wait_ready

SPEC = Path(__file__).parent.parent / "configs" / "virtual.yaml"
SIZES = (16, 64, 256, 1024, 2048)
ROUNDS = 3
SEED = 0
START_SECONDS = 120.0
STORE_SHARE = 2.2
STORE_SPARE = 512 << 20
"""Object store bytes per payload byte, and in addition: enough to hold the engines' inputs and outputs, which the central
controllers keep, without spilling.
"""

Results = dict[str, list[Iteration]]


def measure(sizes: Sequence[int], rounds: int, folder: Path) -> dict[int, Results]:
    """Returns the measured iterations by payload, in MB (10^6 bytes), and by design.

    Raises `ValueError` if a design skips an image.
    """
    images = folder / "images"
    addresses = {size: make_images(images, size, SEED + size) for size in sizes}
    with _ray_head(folder, int(STORE_SHARE * max(sizes) * 1e6) + STORE_SPARE) as address:
        overrides = (f"rollout.engine.instances={ACTORS}", "rollout.engine.base_seconds=0")
        place = Place(folder, images, address, load_spec(SPEC, [*overrides, "rollout.engine.seconds_per_sequence=0"]))
        found: dict[int, Results] = {}
        with ExitStack() as stack:
            designs = {name: stack.enter_context(DriverProcess(name, place)) for name in (SHARDED, CENTRAL, PIPELINED)}
            for design in designs.values():
                design.iterate(0, addresses[max(sizes)][:4])
            # The largest first: object store pages that a driver has touched count as its memory from then on.
            for size in sorted(sizes, reverse=True):
                expected = sum((look_at(read_image(images, name)) for name in addresses[size]), Look())
                found[size] = {name: [] for name in designs}
                for number, (name, design) in product(range(rounds), designs.items()):
                    result = design.iterate(1000 * size + number, addresses[size])
                    if (result.engines, result.ranks) != (expected, expected):
                        raise ValueError(f"{name}: looked at {result.engines} and {result.ranks}, not {expected}")
                    found[size][name].append(result)
                    progress(f"{size} MB {name}: {result.seconds:.2f} s, driver +{result.growth.total:.0f} MB")
    return found


def figures_of(found: dict[int, Results], addresses: dict[int, int]) -> dict[str, float]:
    """Returns the claim's figures. addresses: number of samples by payload."""
    largest = max(found)
    sharded = {size: results[SHARDED] for size, results in found.items()}
    per_sample = [
        result.bytes_through_driver / addresses[size] for size, results in sharded.items() for result in results
    ]
    growth = max(result.growth.total for results in sharded.values() for result in results)
    ours = found[largest][SHARDED]
    theirs = found[largest][CENTRAL]
    return {
        "flow_bytes_per_sample_max": max(per_sample),
        "flow_bytes_per_sample_min": min(per_sample),
        "flow_peak_growth_mb": growth,
        "controller_peak_growth_mb": max(result.controller_mb for results in sharded.values() for result in results),
        "throughput_ratio_vs_central": _seconds(theirs) / _seconds(ours),
        "driver_memory_ratio_central": max(result.growth.total for result in theirs) / max(growth, 1.0),
    }


def baselines_of(found: dict[int, Results], addresses: dict[int, int]) -> dict[str, float]:
    """Returns the figures of the central controllers, at the largest payload."""
    largest = max(found)
    central = found[largest][CENTRAL]
    pipelined = found[largest][PIPELINED]
    return {
        "throughput_ratio_vs_pipelined": _seconds(pipelined) / _seconds(found[largest][SHARDED]),
        "pipelined_peak_growth_mb": max(result.growth.total for result in pipelined),
        "central_bytes_per_sample": central[0].bytes_through_driver / addresses[largest],
        "central_peak_growth_mb": max(result.growth.total for result in central),
        "central_mb_per_s": largest / _seconds(central),
    }


def details_of(found: dict[int, Results]) -> dict[str, Any]:
    """Returns MB/s and the driver's growth, by payload and design."""
    return {
        f"{name}_{size}": {
            "mb_per_s": size / _seconds(results),
            "seconds": [result.seconds for result in results],
            "driver_growth_mb": max(result.growth.total for result in results),
            "driver_private_growth_mb": max(result.growth.private for result in results),
        }
        for size, designs in found.items()
        for name, results in designs.items()
    }


def _seconds(results: Sequence[Iteration]) -> float:
    return median(result.seconds for result in results)


@contextmanager
def _ray_head(folder: Path, store_bytes: int) -> Iterator[str]:
    """Starts a head with an object store of `store_bytes` bytes, and touches the driver's file for its supervisor."""
    ensure_supervisor(folder, [ray_head_service(folder, object_store_bytes=store_bytes)], START_SECONDS)
    try:
        with Heartbeat(folder, TERM):
            yield wait_ready(folder, [SERVICE_NAME], START_SECONDS).service(SERVICE_NAME).address
    finally:
        stop_supervisor(folder)


def main() -> None:
    """Measures and prints the report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="payloads of an iteration in MB")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"iterations of each design (default {ROUNDS})")
    arguments = parser.parse_args()
    before = load_average()
    # A short path, since it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="yatt") as folder:
        found = measure(arguments.sizes, arguments.rounds, Path(folder))
    samples = {size: results[SHARDED][0].engines.images for size, results in found.items()}
    report = Report(
        name="controllers",
        figures=figures_of(found, samples) | {"coordinate_256_ms": coordinate_ms(SEED)},
        seeds=[SEED],
        load=[before, load_average()],
        baselines=baselines_of(found, samples),
        details=details_of(found),
    )
    print_report(report, arguments.json)


if __name__ == "__main__":
    main()
