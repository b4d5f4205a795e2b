"""How the settings of a sweep are written. Consumes plain values; produces words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def value_text(value: Any) -> str:
    """Returns a value of a setting as people type it."""
    return value if isinstance(value, str) else json.dumps(value)


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Returns for each dotted key as few of its last parts as tell it from the others."""
    return {key: next(name for name in _endings(key) if _is_alone(name, key, keys)) for key in keys}


def _endings(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _is_alone(name: str, key: str, keys: Sequence[str]) -> bool:
    return name == key or not any(other != key and (other == name or other.endswith(f".{name}")) for other in keys)
