"""How many bytes a controller may have in flight between itself and the engines: pure accounting without I/O."""

from __future__ import annotations

from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.judges import JudgeRequest

TOKEN_BYTES = 8
"""A token and its log-probability."""
RESPONSE_BYTES = 5
"""The length of a response and the reason it ended."""


def bytes_of(request: GenerateRequest) -> int:
    """Returns the bytes of a decode batch and of its longest possible answer.

    This is an upper bound; most responses end early.
    """
    given = (request.seeds, request.limits, request.question_lengths)
    asked = sum(int(array.nbytes) for array in (*request.prompts, *given) if array is not None)
    tokens = int(request.prompt_limits.sum()) * int(request.seeds.shape[1])
    return asked + tokens * TOKEN_BYTES + int(request.seeds.size) * RESPONSE_BYTES


def bytes_of_judging(request: JudgeRequest) -> int:
    """Returns the bytes of a request to a judge; the answers are short in comparison."""
    return sum(
        len(item.prompt) + len(item.response) + len(item.answer or "") + 8 * len(item.seeds) for item in request.items
    )


class BytesInFlight:
    """Counts bytes taken and released.

    bound: the maximum number of bytes in flight; a larger request is sent alone.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._now = self._peak = 0

    @property
    def now(self) -> int:
        """The bytes in flight."""
        return self._now

    @property
    def peak(self) -> int:
        """The maximum number of bytes that were in flight at once."""
        return self._peak

    def take(self, size: int) -> bool:
        """Reserves bytes if they fit; returns False if they have to wait."""
        if self._now and self._now + size > self._bound:
            return False
        self._now += size
        self._peak = max(self._peak, self._now)
        return True

    def give(self, size: int) -> None:
        """Releases bytes that are no longer in flight."""
        self._now -= size
