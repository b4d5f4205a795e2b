"""References to secrets: what a spec or a settings file says in place of a key or a password.

Consumes a reference and the environment, a file or a reader of Prefect's blocks; produces the value, which is kept out of
every log (`yatt_core.logs.keep_secret`). A value is resolved where it is used, and is never stored.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import model_validator

from yatt_core.errors import ConfigurationError
from yatt_core.logs import keep_secret
from yatt_core.section import SpecModel

WAYS = "{env: NAME}, {file: PATH} or {prefect_block: NAME}"
LONGEST_BYTES = 64 << 10
BlockReader = Callable[[str], str]


class ReferenceForm(NamedTuple):
    """What a way to a secret looks like, as a pattern and in words."""

    pattern: str
    words: str


FORMS: Mapping[str, ReferenceForm] = {
    "env": ReferenceForm(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable"),
    "file": ReferenceForm(r"/(?s:.*)", "an absolute path"),
    "prefect_block": ReferenceForm(
        r"[a-z0-9][a-z0-9-]*", "the name of a block, of lower-case letters, digits and hyphens"
    ),
}
"""Checked by hand, since the messages of a field's pattern repeat the value, which may be the secret."""


class SecretReference(SpecModel):
    """Where a secret is; the secret itself must not be written in a spec."""

    env: str | None = None
    """Name of an environment variable."""
    file: str | None = None
    """Absolute path of a file that only its owner can read (mode 0600 or 0400)."""
    prefect_block: str | None = None
    """Name of a `Secret` block on the Prefect server that runs share."""

    @model_validator(mode="before")
    @classmethod
    def _no_literal(cls, given: Any) -> Any:
        # The value is not repeated, since it may be the secret.
        if not isinstance(given, Mapping | SecretReference):
            raise ValueError(f"expected where the secret is, {WAYS}; the secret itself must not be written here")
        if isinstance(given, Mapping):
            for way, form in FORMS.items():
                value = given.get(way)
                if value is not None and not (isinstance(value, str) and re.fullmatch(form.pattern, value)):
                    raise ValueError(f"{way}: expected {form.words}; the secret itself must not be written here")
        return given

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.env, self.file, self.prefect_block)) != 1:
            raise ValueError(f"expected one of {WAYS}")
        return self

    def __str__(self) -> str:
        """Says where the secret is, for messages."""
        if self.env is not None:
            return f"the environment variable {self.env}"
        return f"the file {self.file}" if self.file is not None else f"the Prefect block {self.prefect_block}"


def resolve(
    reference: SecretReference,
    key: str,
    read_block: BlockReader | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Returns the secret, without surrounding white space, and keeps it out of the logs of this process.

    key: the key of the reference, for error messages.
    read_block: reads a Prefect block; None if this process has no Prefect client.

    Raises `ConfigurationError` if there is no such secret, or others can read its file.
    """
    if reference.env is not None:
        value = environment.get(reference.env, "")
    elif reference.file is not None:
        value = _content(Path(reference.file), key)
    elif read_block is None:
        raise ConfigurationError(
            f"{key}: a Prefect block cannot be read here; expected {{env: NAME}} or {{file: PATH}}"
        )
    else:
        value = read_block(str(reference.prefect_block))
    value = value.strip()
    if not value:
        missing = "is not set" if reference.env is not None else "is empty"
        raise ConfigurationError(f"{key}: {reference} {missing}; expected the secret")
    keep_secret(value)
    return value


def _content(path: Path, key: str) -> str:
    """Returns a file's text. Raises `ConfigurationError` if it cannot be read, or other users can.

    Messages begin with the path: what follows a name such as `token:` is kept out of every output.
    """
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigurationError(
                    f"{path}, the file of {key}, has mode {mode:04o}, which gives other users access; expected 0600"
                )
            return stream.read(LONGEST_BYTES).decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}, the file of {key}, cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}, the file of {key}, is not a text in UTF-8") from None
