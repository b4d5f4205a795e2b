"""Divides the training prompts into the pools of a curriculum, by the values of a key of their rows.

Consumes the written prompts. Produces the manifest's entry about the pools, and a file with the pool of each prompt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from yatt_core.errors import ConfigurationError
from yatt_core.inputs.manifest import TRAIN, Facts
from yatt_core.inputs.pools import POOL_FILE, POOLS
from yatt_core.prompts.keys import value_at
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.protocols.receipts import PromptPool
from yatt_core.spec.sections.data import UNFIT_IN_NAMES, DataSpec

MOST_POOLS = 256
WITHOUT = "none"
"""Name of the pool of rows that lack the key."""
LONGEST_NAME = 100


def write_pools(data: DataSpec, folder: Path) -> Facts:
    """Writes the pool of each training prompt; returns the manifest's entry, which is empty if sources are not divided.

    Raises `ConfigurationError` if no row has the key, or if it has too many values.
    """
    if data.curriculum is None or data.curriculum.field is None:
        return {}
    place = f"data.curriculum.field {data.curriculum.field!r}"
    train = PromptFile(folder / TRAIN)
    found = [
        (int(source), _value(json.loads(entry), data.curriculum.field))
        for source, entry in zip(train.column("source"), train.column("entry"), strict=True)
    ]
    sizes = Counter(found)
    if all(value == WITHOUT for _, value in sizes):
        raise ConfigurationError(f"{place}: no row has this key; expected a key of the rows, or null")
    if len(sizes) > MOST_POOLS:
        raise ConfigurationError(f"{place}: it has {len(sizes)} values; expected at most {MOST_POOLS} pools")
    ordered = sorted(sizes, key=lambda pool: (pool[0], _natural(pool[1])))
    numbers = {pool: number for number, pool in enumerate(ordered)}
    np.save(folder / POOL_FILE, np.array([numbers[pool] for pool in found], dtype=np.int32))
    names = _names(f"{data.source_names[source]}.{value}" for source, value in ordered)
    pools = [PromptPool(name, pool[0], sizes[pool]) for name, pool in zip(names, ordered, strict=True)]
    return {POOLS: [asdict(pool) for pool in pools]}


def _value(entry: Any, field: str) -> str:
    """Returns the value of a key, as text."""
    value = value_at(entry, field)
    if value is None:
        return WITHOUT
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _natural(value: str) -> tuple[bool, float, str]:
    """Returns a key that sorts numbers by value, before texts."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def _names(wanted: Iterable[str]) -> list[str]:
    """Returns names that metrics can have, all different."""
    names: list[str] = []
    for number, name in enumerate(wanted):
        plain = UNFIT_IN_NAMES.sub("_", name)[:LONGEST_NAME]
        names.append(plain if plain not in names else f"{plain}-{number}")
    return names
