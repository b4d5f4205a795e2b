"""Collects errors of the user's input, so that one attempt reports all of them.

Consumes the errors raised within `noting` blocks. Produces a single error with one line per problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from yatt_core.errors import ConfigurationError, DataError, YattError

LISTED = 10
"""Maximum number of problems of the same kind that are listed one by one."""


class Problems:
    """The problems found so far, in order and without repetitions."""

    def __init__(self) -> None:
        self._errors: list[YattError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def note(self, error: YattError) -> None:
        """Adds an error."""
        self._errors.append(error)

    def extend(self, others: Problems) -> None:
        """Adds all errors of other problems."""
        self._errors += others._errors

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Adds the configuration or data error that ends the block; execution continues after the block."""
        try:
            yield
        except (ConfigurationError, DataError) as error:
            self.note(error)

    def raise_any(self) -> None:
        """Raises the only error as it is, and several as one.

        Of several, the class is `ConfigurationError` if one of them is, else `DataError`.
        """
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            wrong = any(isinstance(error, ConfigurationError) for error in self._errors)
            raise (ConfigurationError if wrong else DataError)(self._text())

    def raise_as_configuration(self) -> None:
        """Raises all errors as one `ConfigurationError`: before a run, rows that cannot be used are a wrong choice."""
        if self._errors:
            raise ConfigurationError(self._text()) from (self._errors[0] if len(self._errors) == 1 else None)

    def _text(self) -> str:
        return "\n".join(dict.fromkeys(line for error in self._errors for line in str(error).splitlines()))
