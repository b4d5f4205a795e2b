"""What micro-batches are assembled from: prompts and responses in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from yatt_core.wire.support import Support

Int64 = npt.NDArray[np.int64]


class Sequences(Protocol):
    """N pairs of prompt and response in flat arrays with offsets [N + 1]; `ExperienceBatch` implements it."""

    @property
    def prompt_tokens(self) -> npt.NDArray[np.int32]: ...
    @property
    def prompt_offsets(self) -> Int64: ...
    @property
    def response_tokens(self) -> npt.NDArray[np.int32]: ...
    @property
    def response_offsets(self) -> Int64: ...
    @property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """Which response tokens count, aligned with `response_tokens`."""
        ...

    @property
    def media(self) -> Sequence[Sequence[str]]:
        """Content addresses of each prompt's images, N rows; empty without images."""
        ...

    @property
    def support(self) -> Support | None:
        """The support of each response token; None for the whole vocabulary."""
        ...

    @property
    def held(self) -> npt.NDArray[np.bool_] | None:
        """The rows whose tokens are here, N; None if all are."""
        ...


def counted_lengths(batch: Sequences) -> Int64:
    """Returns the number of response tokens that count in the loss, [N]."""
    running = np.concatenate(([0], np.cumsum(batch.loss_mask, dtype=np.int64)))
    counted: Int64 = running[batch.response_offsets[1:]] - running[batch.response_offsets[:-1]]
    return counted
