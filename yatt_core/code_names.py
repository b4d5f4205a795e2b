"""How a spec names code: by an import path or an entry point, or by a Python file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from yatt_core.file_names import nameable
from yatt_core.named_code import FORM


def _checked(file: str) -> str:
    path, _, attribute = file.rpartition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        raise ValueError(f"expected {FORM} (given: {file!r})")
    nameable(path)
    return file


CodeFileName = Annotated[str, AfterValidator(_checked)]
"""The name of something in a Python file."""


def require_one_name(function: str | None, file: str | None, sha256: str | None = None) -> None:
    """Raises `ValueError` unless code is named either by import path or entry point, or by file.

    sha256: a digest that vouches for files only: with installed code, it would promise what nobody checks.
    """
    if (function is None) == (file is None):
        raise ValueError(
            f"expected exactly one of function (an entry point, or package.module:function) and file ({FORM})"
        )
    if file is None and sha256 is not None:
        raise ValueError("sha256: only allowed together with file")
