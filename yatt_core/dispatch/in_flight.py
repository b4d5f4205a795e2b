"""How many bytes a controller may have under way between itself and the engines: pure accounting that owns no I/O."""

from __future__ import annotations

from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.judges import JudgeRequest

TOKEN_BYTES = 8
"""A token and its log-probability."""
RESPONSE_BYTES = 5
"""A response's length and its way of ending."""


def bytes_of(request: GenerateRequest) -> int:
    """Bytes of a decode batch and of the longest answer to it; an upper bound, since most responses end early."""
    given = (request.seeds, request.limits, request.question_lengths)
    asked = sum(int(array.nbytes) for array in (*request.prompts, *given) if array is not None)
    tokens = int(request.prompt_limits.sum()) * int(request.seeds.shape[1])
    return asked + tokens * TOKEN_BYTES + int(request.seeds.size) * RESPONSE_BYTES


def bytes_of_judging(request: JudgeRequest) -> int:
    """Bytes of what a judge is shown; its answers are short beside it."""
    return sum(
        len(item.prompt) + len(item.response) + len(item.answer or "") + 8 * len(item.seeds) for item in request.items
    )


class BytesInFlight:
    """Counts bytes taken and given back. bound: most bytes at once; what is larger than that goes alone."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._now = self._peak = 0

    @property
    def now(self) -> int:
        """Bytes under way."""
        return self._now

    @property
    def peak(self) -> int:
        """Most bytes that were under way at once."""
        return self._peak

    def take(self, size: int) -> bool:
        """Books some bytes, if there is room for them; False where they have to wait."""
        if self._now and self._now + size > self._bound:
            return False
        self._now += size
        self._peak = max(self._peak, self._now)
        return True

    def give(self, size: int) -> None:
        """These bytes are not under way any more."""
        self._now -= size
