"""What workers of a vLLM engine get in place of YATT's methods if host memory stands for that of a GPU (`lending`)."""

from __future__ import annotations

from benchmarks.gpu.lent_memory import lend_host_memory
from yatt_core.engines.rollout.vllm.weights import WorkerMethods

lend_host_memory()


class LendingMethods(WorkerMethods):
    """The methods of a worker that can read the actor's GPU."""

    def reads_gpu(self) -> bool:
        return True
