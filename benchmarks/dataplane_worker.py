"""The actor of `benchmarks.dataplane`, and the parts of the object that it shares, in a module that workers import."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from yatt_core.wire.packed import PackedArrays

Arrays = dict[str, npt.NDArray[Any]]


def part_of(batch: PackedArrays, part: int) -> Arrays:
    """Returns views of one part."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): array for name, array in batch.arrays().items() if name.startswith(prefix)}


@ray.remote(num_cpus=0)
class Worker:
    """Adds one to every byte; returns new arrays."""

    def plain(self, arrays: Arrays) -> Arrays:
        """Returns a dict of arrays, the usual way to send them."""
        return {name: (array.view(np.uint8) + np.uint8(1)).view(array.dtype) for name, array in arrays.items()}

    def packed(self, batch: PackedArrays, part: int) -> PackedArrays:
        """Takes this worker's part of the shared packed object; computes the sums directly in the buffer that will be sent."""
        arrays = part_of(batch, part)
        result = PackedArrays.empty({name: (array.dtype.str, array.shape) for name, array in arrays.items()})
        for name, place in result.arrays().items():
            np.add(arrays[name].view(np.uint8), np.uint8(1), out=place.view(np.uint8))
        return result
