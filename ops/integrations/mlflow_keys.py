"""Names of params, tags and metrics as MLflow accepts them: options and functions of users may have others.

Consumes a name. Produces one of letters, digits, `_`, `-`, `.`, `:`, `/` and spaces; of a metric, also one that is no other name
when it is taken for the path of a file. A refused name would hold back its row for ever.
"""

from __future__ import annotations

import posixpath
import re

LONGEST_METRIC = 250
"""Characters that MLflow's databases keep of a metric's name."""
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")


def plain_key(key: str) -> str:
    """Returns a name of characters that MLflow accepts."""
    return _NOT_IN_KEYS.sub("_", key)


def metric_key(key: str) -> str:
    """Returns a metric's name that MLflow accepts; one that it accepts already stays as it is."""
    plain = plain_key(key)[:LONGEST_METRIC]
    if posixpath.normpath(plain) == plain and not plain.startswith(("/", "..")) and plain != ".":
        return plain
    return plain.replace("/", "_").replace("..", "__").strip(".") or "_"
