"""Fixes the Python files that a spec names: adds the SHA-256 of each, so that the spec stands for these contents.

Consumes a validated spec, and the files. Raises `ConfigurationError`, which names the key and the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, SOURCES, source_digest
from yatt_core.errors import ConfigurationError
from yatt_core.spec.rewards.scheme import FunctionPart, RewardPart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.algorithm import AlgorithmSpec
from yatt_core.spec.sections.data import DataSpec, FunctionSource, Source

LARGEST_BYTES = 4 << 20
"""Maximum size of a file with reward functions."""


def with_digests(spec: RunSpec, origin: Callable[[Sequence[str | int]], str]) -> RunSpec:
    """Returns the spec with the digest of each file, and of the source of each method of its own, that has none yet.

    origin: returns the name of what set a key, for error messages.
    """

    def fixed(number: int, part: RewardPart) -> RewardPart:
        if not isinstance(part, FunctionPart) or part.path is None or part.sha256 is not None:
            return part
        place = ("rewards", "parts", number, "file")
        data = read_code_file(part.path, f"{origin(place)}: {'.'.join(map(str, place))}")
        return part.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})

    parts = tuple(fixed(number, part) for number, part in enumerate(spec.rewards.parts))
    rewards = spec.rewards.model_copy(update={"parts": parts})
    changes = {
        "rewards": rewards,
        "algorithm": _with_sources(spec.algorithm, origin),
        "data": _own_data(spec.data, origin),
    }
    return spec.model_copy(update=changes)


def _own_data(data: DataSpec, origin: Callable[[Sequence[str | int]], str]) -> DataSpec:
    """Returns the section with the digests of the sources of functions that yield rows."""

    def fixed(number: int, source: Source) -> Source:
        if not isinstance(source, FunctionSource) or source.sha256 is not None:
            return source
        try:
            return source.model_copy(update={"sha256": source_digest(source.function, SOURCES)})
        except ConfigurationError as error:
            raise ConfigurationError(f"{origin(('data', 'sources', number, 'function'))}: {error}") from error

    return data.model_copy(update={"sources": tuple(fixed(*numbered) for numbered in enumerate(data.sources))})


def _with_sources(algorithm: AlgorithmSpec, origin: Callable[[Sequence[str | int]], str]) -> AlgorithmSpec:
    """Returns the section with the digests of the sources of a loss and an advantage that are functions."""
    changes: dict[str, Any] = {}
    for key, method, group in (("loss", algorithm.loss, LOSSES), ("advantage", algorithm.advantage, ADVANTAGES)):
        if isinstance(method, CustomLoss | CustomAdvantage) and method.sha256 is None:
            try:
                digest = source_digest(method.function, group)
            except ConfigurationError as error:
                raise ConfigurationError(f"{origin(('algorithm', key, 'function'))}: {error}") from error
            changes[key] = method.model_copy(update={"sha256": digest})
    return algorithm.model_copy(update=changes)


def read_code_file(path: Path, place: str) -> bytes:
    """Returns the bytes of a Python file.

    place: the place that names it, for messages.
    """
    if not path.is_file():
        found = "is not a regular file" if path.exists() else "does not exist"
        raise ConfigurationError(f"{place}: {path} {found}; expected path/of/file.py:function")
    try:
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise ConfigurationError(f"{place}: {path} has {size} bytes; at most {LARGEST_BYTES} are allowed")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{place}: {path} cannot be read: {error.strerror}") from None
