"""The workers of a vLLM engine on a node that has no scheduler; they take their calls from the engine's first node.

Imports vLLM, and runs in a process of its own, as an engine does. The process ends as soon as one of its workers ends,
since the others then wait for it in vain.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import wait

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.engines.rollout.vllm.nameless import forget_names
from yatt_core.engines.rollout.vllm.opening import engine_config, opening_errors
from yatt_core.engines.rollout.vllm.settings import settings_of

WORKER_LOST = 1
"""Exit code of the process after a worker has ended."""


class VllmFollower:
    """One node's workers; they are ready once this is built, which takes until all nodes' workers are.

    Raises as `open_engine` does.
    """

    def __init__(self, opening: Opening) -> None:
        with opening_errors(opening.model_path) as stage:
            settings = settings_of(opening.settings)
            config = engine_config(opening.model_path, settings, opening.longest, opening.span)
            stage.starting = True
            self._executor = MultiprocExecutor(config, monitor_workers=False)
        forget_names("")
        threading.Thread(target=self._end_with_workers, name="workers", daemon=True).start()

    def _end_with_workers(self) -> None:
        wait([worker.proc.sentinel for worker in self._executor.workers])
        os._exit(WORKER_LOST)
