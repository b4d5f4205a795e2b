"""An advantage of your own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from yatt_core.algorithms.advantages.base import Advantage, Float64, RewardBatch
from yatt_core.algorithms.own import ADVANTAGES, call, place_of
from yatt_core.code_names import CodeFileName, require_one_name
from yatt_core.errors import ConfigurationError
from yatt_core.naming import Names


class CustomAdvantage(Advantage):
    """A function of yours: (batch: RewardBatch, options: Mapping) -> float64 array. docs/algorithms.md has an example."""

    kind: Literal["custom"] = "custom"
    function: Annotated[str | None, Names("code")] = None
    """`package.module:function`, or the name of an entry point of the group `yatt.advantages`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """A function in a Python file, as `path/of/file.py:function`. The run keeps its own copy and executes only that."""
    options: Annotated[dict[str, Any], Names("code")] = Field(default_factory=dict)
    """Passed on unchanged."""
    of: Literal["responses", "tokens"] = "responses"
    """Whether the result has an entry for each response or for each counted token."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the function's source file; filled in when the spec is read. An exact run refuses another source; no run
    executes a `file` with other contents."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        require_one_name(self.function, self.file)
        return self

    @property
    def by_token(self) -> bool:
        """See `Advantage`."""
        return self.of == "tokens"

    @property
    def by_group(self) -> bool:
        """False: the function sees the whole batch."""
        return False

    @property
    def compares(self) -> bool:
        """False: the function decides."""
        return False

    def advantages(self, batch: RewardBatch) -> Float64:
        """See `Advantage`."""
        found = call(self, ADVANTAGES, batch, self.options)
        expected = (int(batch.lengths.sum()) if self.by_token else len(batch.rewards),)
        if not isinstance(found, np.ndarray) or found.shape != expected or found.dtype != np.float64:
            shape = getattr(found, "shape", type(found).__name__)
            raise ConfigurationError(
                f"{place_of(self, ADVANTAGES)} returned {shape}; expected {expected[0]} {self.of} in a float64 array"
            )
        if not np.isfinite(found).all():
            place = int(np.argmin(np.isfinite(found)))
            raise ConfigurationError(
                f"{place_of(self, ADVANTAGES)} returned {found[place]} at index {place} of {expected[0]} {self.of}; "
                "expected finite numbers"
            )
        return found
