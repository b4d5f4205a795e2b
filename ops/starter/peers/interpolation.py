"""Values of Hydra that stand for those of other keys: `${a.b}`, `${.sibling}` and `${oc.select:a.b,default}`.

Consumes a value, its key and a function that looks keys up. Produces the value meant. A value in another form stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import parse_yaml

_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.?[A-Za-z_][\w.]*)\s*(?:,(.*))?\}", re.DOTALL)
MISSING = object()
"""Stands for a key that neither the file nor the peer's defaults have."""
DEEPEST = 10
"""Number of keys in a row that may stand for each other."""


def resolved(value: Any, key: str, look_up: Callable[[str], Any], depth: int = 0) -> Any:
    """Returns what a value stands for.

    key: of the value; names that begin with a dot are beside it.
    look_up: returns the value of a key, or `MISSING`.
    """
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    if depth == DEEPEST:
        raise ConfigurationError(f"{key}: {value} leads through more than {DEEPEST} keys; write its value")
    name = f"{key.rpartition('.')[0]}{found[1]}" if found[1].startswith(".") else found[1]
    meant = look_up(name)
    if meant is not MISSING:
        return resolved(meant, name, look_up, depth + 1)
    if found[2] is None:
        return value
    default = found[2].strip()
    return resolved(default if default.startswith("${") else parse_yaml(default, key), key, look_up, depth + 1)
