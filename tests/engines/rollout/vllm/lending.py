"""A vLLM engine whose processes take buckets of weights from a GPU's memory, for which host memory stands.

`LENT` starts such an engine: its process and its workers believe that they can read the GPU of the actor.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.lent_memory import lend_host_memory
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH

NAME = "tests.engines.rollout.vllm.lending"
WORKERS = "tests.engines.rollout.vllm.lending_worker.LendingMethods"
ROOT = Path(__file__).parents[4]


def variables(processors: bool, address: str, invariant: bool) -> dict[str, str]:
    """The engine's Python must find the tests, and nothing else that the workflow's has."""
    return {**VLLM_LAUNCH.variables(processors, address, invariant), "PYTHONPATH": str(ROOT)}


LENT = Launch(VLLM_LAUNCH.kind, NAME, variables)


def main(descriptor: int, parent: int) -> None:
    from yatt_core.engines.rollout.vllm import opening, serving

    lend_host_memory()
    vars(opening)["WORKER_METHODS"] = WORKERS
    serving.main(descriptor, parent)
