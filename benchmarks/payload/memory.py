"""Measures how far a process's memory grows: its peak, and the peak of its private pages without Ray's object store.

Linux records the peak itself (VmHWM), so nothing is missed between two samples. The peak includes private pages
(RssAnon), mapped files and the pages of the object store that the process has touched (RssShmem). Objects that a
driver keeps alive by its references are among these, and occupy its memory like a private copy. The peak of the
private pages alone is sampled in addition.
"""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SAMPLE_SECONDS = 0.005
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of a process's peak memory, in MB (10^6 bytes).

    total: growth of the peak of all pages, those of the object store included.
    private: growth of the peak of private pages alone.
    """

    total: float
    private: float


class PeakGrowth:
    """A context manager that measures growth, and sets `growth` when it exits."""

    def __init__(self) -> None:
        self.growth = Growth(0.0, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)
        self._private = 0

    def __enter__(self) -> PeakGrowth:
        gc.collect()
        _CLEAR.write_text(RESET_PEAK)
        self._before = _read("VmRSS")
        self._private_before = _read("RssAnon")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.growth = Growth(
            max(_read("VmHWM") - self._before, 0) * 1024 / 1e6,
            max(self._private - self._private_before, 0) * 1024 / 1e6,
        )

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._private = max(self._private, _read("RssAnon"))


def _read(key: str) -> int:
    """Reads a value, in KiB, from the process's status."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {key}")
