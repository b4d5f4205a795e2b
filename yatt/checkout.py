"""Imports of a checkout: its folders `flows`, `db` and `ops` as `yatt.flows`, `yatt.db` and `yatt.ops`, as in an installation.

Consumes the repository's folder. Produces a finder of modules below `yatt`, whose source is renamed as it is compiled
(`yatt/renaming.py`). Byte code is kept beside that of the modules as tests import them, under a name of its own. A wheel has
renamed files and does not contain this module.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, decode_source, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from yatt.renaming import ABOVE, is_part, renamed

TAG = "yatt"
"""Marks the byte code of renamed modules in its file name."""


class RenamingLoader(SourceFileLoader):
    """Compiles the renamed source of a module."""

    def get_code(self, fullname: str) -> CodeType:
        """Returns the module's code, from byte code of the present source if there is any."""
        source = Path(self.path)
        stat = source.stat()
        stamps = (0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
        header = MAGIC_NUMBER + b"".join(number.to_bytes(4, "little") for number in stamps)
        cache = Path(cache_from_source(self.path, optimization=TAG))
        with suppress(OSError, EOFError, ValueError, TypeError):
            data = cache.read_bytes()
            if data.startswith(header):
                kept: CodeType = marshal.loads(data[len(header) :])
                return kept
        text = renamed(decode_source(source.read_bytes()))
        code: CodeType = compile(text, self.path, "exec", dont_inherit=True)
        if not sys.dont_write_bytecode:
            with suppress(OSError):  # a read-only checkout
                cache.parent.mkdir(exist_ok=True)
                new = cache.with_name(f"{cache.name}.{os.getpid()}")
                new.write_bytes(header + marshal.dumps(code))
                new.replace(cache)
        return code


class CheckoutFinder(MetaPathFinder):
    """Finds `yatt.flows` and the like in the folders beside `yatt`, and the modules of `yatt` itself."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns where a module below `yatt` is; None for every other module."""
        above, _, name = fullname.partition(".")
        if above != ABOVE or not name:
            return None
        place = (self._root if is_part(name) else self._root / ABOVE).joinpath(*name.split("."))
        if (package := place / "__init__.py").is_file():
            loader = RenamingLoader(fullname, str(package))
            return spec_from_file_location(fullname, package, loader=loader, submodule_search_locations=[str(place)])
        file = place.with_name(f"{place.name}.py")
        return (
            spec_from_file_location(fullname, file, loader=RenamingLoader(fullname, str(file)))
            if file.is_file()
            else None
        )


def install(root: Path) -> None:
    """Makes the parts of a checkout importable below `yatt` in this process."""
    sys.meta_path.insert(0, CheckoutFinder(root))
