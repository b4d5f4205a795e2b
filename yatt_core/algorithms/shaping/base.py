"""What every length penalty implements."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from yatt_core.section import SpecModel

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


class LengthPenalty(SpecModel):
    """A length penalty with its settings; `kind` names it."""

    kind: str

    @abstractmethod
    def penalties(self, lengths: Int64, longest: int) -> Float64:
        """Returns what is subtracted from the reward of each response, [N].

        lengths: [N], tokens that the policy wrote.
        longest: `rollout.max_new_tokens`.
        """
