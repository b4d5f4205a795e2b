"""Names of params, tags and metrics as MLflow accepts them: options and functions of users may have others.

Consumes a name. Produces one of at most 250 letters, digits, `_`, `-`, `.`, `:`, `/` and spaces, which is no other name when it
is taken for the path of a file. A row with a refused name would stay unsent for ever.
"""

from __future__ import annotations

import hashlib
import posixpath
import re

LONGEST_KEY = 250
"""Characters that MLflow's databases keep of a name."""
DIGEST_DIGITS = 16
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")


def accepted_key(key: str) -> str:
    """Returns a name that MLflow accepts; one that it accepts already stays as it is.

    A longer one ends with a digest of the whole, so that two names that begin alike stay two.
    """
    accepted = _NOT_IN_KEYS.sub("_", key)
    if posixpath.normpath(accepted) != accepted or accepted.startswith(("/", "..")) or accepted == ".":
        accepted = accepted.replace("/", "_").replace("..", "__").strip(".") or "_"
    if len(accepted) <= LONGEST_KEY:
        return accepted
    digest = hashlib.sha256(key.encode()).hexdigest()[:DIGEST_DIGITS]
    return f"{accepted[: LONGEST_KEY - DIGEST_DIGITS - 1]}-{digest}"
