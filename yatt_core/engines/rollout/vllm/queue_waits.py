"""Has the processes of an engine sleep while they wait for each other, on CPU cores.

Imports vLLM. Its readers ask their queue without a pause for a second after each message (vLLM 0.32); where there is no GPU,
they take the cores from the very process for which they wait.
"""

from __future__ import annotations

from functools import partial

from vllm.distributed.device_communicators import shm_broadcast

BUSY_SECONDS = 0.002
"""How long a reader asks without a pause: the time between two messages of a step."""


def sleep_in_waits() -> None:
    """Makes the queues of this process that are opened from now on wait asleep."""
    shm_broadcast.SpinCondition = partial(shm_broadcast.SpinCondition, busy_loop_s=BUSY_SECONDS)
