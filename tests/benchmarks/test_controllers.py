"""Parts of `benchmarks.controllers` without Ray: digests of payloads, peak memory, and figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.controllers import baselines_of, figures_of
from benchmarks.payload.drivers import CENTRAL, PIPELINED, SHARDED, Iteration
from benchmarks.payload.images import Look, Packed, batches, look_at, make_images, read_image
from benchmarks.payload.memory import Growth


def test_images_are_files_of_1_to_4_mb_named_by_digest(tmp_path: Path) -> None:
    addresses = make_images(tmp_path, 12, seed=1)
    files = [read_image(tmp_path, address) for address in addresses]
    assert all(990_000 < file.nbytes < 4_000_000 for file in files)
    assert 12_000_000 <= sum(file.nbytes for file in files) < 16_000_000
    assert make_images(tmp_path, 12, seed=1) == addresses
    path = next(path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="damaged"):
        [read_image(tmp_path, address) for address in addresses]


def test_a_look_covers_every_byte_and_can_be_added(tmp_path: Path) -> None:
    (address, *_) = make_images(tmp_path, 1, seed=2)
    data = read_image(tmp_path, address)
    seen = look_at(data)
    assert (seen.images, seen.size) == (1, data.nbytes)
    for position in (40, data.nbytes // 2, data.nbytes - 1):
        changed = data.copy()
        changed[position] ^= 1
        assert look_at(changed).digest != seen.digest
    assert seen + Look() == seen and (seen + seen).size == 2 * data.nbytes


TAKE_AND_GIVE_BACK = """
import numpy as np
from benchmarks.payload.memory import PeakGrowth
with PeakGrowth() as memory:
    taken = np.ones(10_000_000)
    assert taken.sum() == 10_000_000
    del taken
print(memory.growth.total)
"""


def test_memory_that_was_allocated_and_freed_is_measured() -> None:
    # In a separate process, because memory freed by other threads of this one would distort the measurement.
    command = [sys.executable, "-c", TAKE_AND_GIVE_BACK]
    grown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert 70 < float(grown) < 120


def test_parts_of_packed_images_are_equal_to_the_whole() -> None:
    images = [np.full(size, size, np.uint8) for size in (3, 0, 5, 2)]
    packed = Packed.of(images)
    assert [image.tolist() for image in packed.part(1, 4).images()] == [image.tolist() for image in images[1:]]
    joined = Packed.joined([packed.part(0, 2), packed.part(2, 4)])
    assert joined.data.tolist() == packed.data.tolist() and joined.offsets.tolist() == packed.offsets.tolist()


def test_batches_cover_all_rows() -> None:
    assert [list(rows) for rows in batches(5, 2)] == [[0, 1], [2, 3], [4]]


def iteration(seconds: float, through: int, growth: float, controller: float = 0.0) -> Iteration:
    return Iteration(seconds, through, Growth(growth, growth / 2), controller, Look(), Look())


def test_figures_use_the_worst_payload_and_ratios_the_largest() -> None:
    found = {
        16: {SHARDED: [iteration(1.0, 600, 2.0, 5.0)], CENTRAL: [iteration(1.0, 16_000_000, 30.0)], PIPELINED: []},
        64: {
            SHARDED: [iteration(2.0, 1000, 3.0, 4.0)],
            CENTRAL: [iteration(5.0, 64_000_000, 120.0)],
            PIPELINED: [iteration(3.0, 64_000_000, 90.0)],
        },
    }
    assert figures_of(found, {16: 4, 64: 10}) == {
        "flow_bytes_per_sample_max": 150.0,
        "flow_bytes_per_sample_min": 100.0,
        "flow_peak_growth_mb": 3.0,
        "controller_peak_growth_mb": 5.0,
        "throughput_ratio_vs_central": 2.5,
        "driver_memory_ratio_central": 40.0,
    }
    baselines = baselines_of(found, {16: 4, 64: 10})
    assert baselines["central_bytes_per_sample"] == 6_400_000
    assert baselines["throughput_ratio_vs_pipelined"] == 1.5
