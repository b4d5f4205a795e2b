"""The rollout engines that take new weights in the measure of transfers: torch's, and vLLM's on one or two devices.

Consumes a model folder and the transfer's buckets. A vLLM engine computes in processes of its own, whose memory is
measured from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil

from benchmarks.grow.ranks import private_growth
from yatt_core.engine_environments import VLLM, is_installed
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.wire.buckets import WeightBucket

ENGINE_TYPE = "bfloat16"
PROMPT = 64
RESPONSE = 8
SEQUENCES = 4
CACHE = 16 << 20
SAMPLE_SECONDS = 0.005
RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Has the C library of a process that starts with these variables return each freed tensor to the system at once."""


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine.

    count: number of engines that receive at the same time.
    devices: those that share an engine's layers; 0 for torch.
    """

    count: int
    devices: int = 0


KINDS = {"torch": EngineKind(2), "vllm": EngineKind(1, 1), "vllm_tp2": EngineKind(1, 2)}


def kinds_here() -> dict[str, EngineKind]:
    """Returns the kinds that this installation has."""
    has_vllm = is_installed(VLLM, None)
    return {name: kind for name, kind in KINDS.items() if has_vllm or not kind.devices}


class Receiver:
    """One rollout engine of a kind, for a model folder.

    takes_changes: whether a vLLM engine keeps a copy of its weights; torch's needs none.

    `buffers`: the engine's memory for buckets; see `RolloutEngine.buffers`.
    """

    def __init__(self, kind: EngineKind, folder: Path, takes_changes: bool) -> None:
        self._engine: Any = _opened(kind, folder, takes_changes)
        self.buffers = self._engine.buffers

    def take(self, version: int, buckets: Iterator[WeightBucket]) -> int:
        """Updates the engine's weights; returns the bytes received."""
        received = 0
        engine = self._engine
        for bucket in buckets:
            if not bucket.number:
                engine.begin_update(version)
            engine.take(bucket)
            received += bucket.nbytes
        engine.end_update()
        return received

    def growth(self, call: Callable[[], object]) -> int:
        """Returns the growth of private memory during a call, of this process or the engine's that grows most.

        What the processes of an engine share for buckets, and keep, counts as this process's growth.
        """
        from yatt_core.engines.rollout.served.engine import ServedRolloutEngine

        engine: RolloutEngine = self._engine
        if not isinstance(engine, ServedRolloutEngine):
            return private_growth(call)
        parent = psutil.Process(engine._core.pid)
        with _Watch([parent.pid, *(child.pid for child in parent.children(recursive=True))]) as watch:
            own = private_growth(call)
        return int(max(own + engine._memory.nbytes, *watch.growth.values()))

    def close(self) -> None:
        """Ends the processes of an engine that has any."""
        if hasattr(self._engine, "close"):
            self._engine.close()


def _opened(kind: EngineKind, folder: Path, takes_changes: bool) -> RolloutEngine:
    if not kind.devices:
        from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine

        return TorchRolloutEngine(
            model_path=str(folder),
            dtype=ENGINE_TYPE,
            max_prompt_tokens=PROMPT,
            max_new_tokens=RESPONSE,
            inputs_folder=folder.parent,
        )
    from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
    from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
    from yatt_core.spec.sections.accelerated import VllmRollout

    spec = VllmRollout(
        instances=1, dtype=ENGINE_TYPE, max_num_seqs=SEQUENCES, kv_cache_memory_bytes=CACHE,
        tensor_parallel_size=kind.devices,
    )  # fmt: skip
    return ServedRolloutEngine(
        launch=VLLM_LAUNCH,
        model_path=str(folder),
        spec=spec,
        max_prompt_tokens=PROMPT,
        max_new_tokens=RESPONSE,
        takes_changes=takes_changes,
    )


class _Watch:
    """Samples the private memory of other processes; `growth` has each one's in bytes when it ends."""

    def __init__(self, pids: list[int]) -> None:
        self._before = {pid: private_bytes(pid) for pid in pids}
        self._peak = dict(self._before)
        self.growth = dict.fromkeys(pids, 0)
        self._ended = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.growth = {pid: self._peak[pid] - before for pid, before in self._before.items()}

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            for pid, peak in self._peak.items():
                self._peak[pid] = max(peak, private_bytes(pid))


def private_bytes(pid: int) -> int:
    """Returns the private memory of a process, as `RssAnon` of its status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no private memory")
