"""Names of an installation: the repository's `flows`, `db` and `ops` are `yatt.flows`, `yatt.db` and `yatt.ops`.

Consumes the source of a module that imports the parts by the names of their folders. Produces the source that imports them
below `yatt`, with all lines in place. The build of the wheel (`setup.py`) and the import of a checkout (`yatt/checkout.py`)
use it; it imports nothing of YATT. docs/decisions/0015-installed-names.md has the reasons.
"""

from __future__ import annotations

import ast
import re

PARTS = ("flows", "db", "ops")
"""Folders whose names are too common to be claimed by an installation."""
ABOVE = "yatt"
_FROM = re.compile(r"from\s+")


def is_part(module: str) -> bool:
    """Returns True for a module of one of the parts, by its name in the repository."""
    return module.partition(".")[0] in PARTS


def renamed(source: str) -> str:
    """Returns a module's source with `from flows.x import y` turned into `from yatt.flows.x import y`.

    Raises `ValueError` for `import flows.x`, which would bind the name `flows`, and `SyntaxError`.
    """
    if not any(part in source for part in PARTS):
        return source
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(is_part(alias.name) for alias in node.names):
            raise ValueError(f"line {node.lineno}: write `from {node.names[0].name} import ...`")
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and is_part(node.module):
            # An import may follow a semicolon or a colon; what precedes it is counted in bytes.
            line = lines[node.lineno - 1].encode()
            before = line[: node.col_offset].decode()
            after = line[node.col_offset :].decode()
            lines[node.lineno - 1] = before + _FROM.sub(rf"\g<0>{ABOVE}.", after, count=1)
    return "\n".join(lines)
