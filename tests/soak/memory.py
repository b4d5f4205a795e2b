"""Memory of processes over their lifetimes: samples of the resident set size, and its growth after warm-up.

Takes process ids with labels; reports every process that lived long enough.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

MIB = 1024**2
FEWEST_SAMPLES = 40


@dataclass
class Life:
    """A process.

    what: its label.
    rss: samples of its resident set size in bytes, in order of time.
    """

    what: str
    rss: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Relative growth of the median from the second quarter of its life to the last."""
        quarter = len(self.rss) // 4
        early = statistics.median(self.rss[quarter : 2 * quarter])
        late = statistics.median(self.rss[-quarter:])
        return late / early - 1.0

    def report(self) -> dict[str, float | int | str]:
        return {
            "process": self.what,
            "samples": len(self.rss),
            "first_mib": round(self.rss[0] / MIB, 1),
            "last_mib": round(self.rss[-1] / MIB, 1),
            "growth": round(self.growth, 4),
        }


class Sampler:
    """Takes samples of all processes in its own thread.

    look: returns the labels of the current processes by process id.
    """

    def __init__(self, look: Callable[[], Mapping[int, str]], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._ended = threading.Event()
        self._lives: dict[tuple[int, float], Life] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            for pid, what in self._look().items():
                try:
                    process = psutil.Process(pid)
                    with process.oneshot():
                        key = (pid, process.create_time())
                        rss = process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self._lives.setdefault(key, Life(what)).rss.append(rss)

    def lives(self) -> list[Life]:
        """Returns the processes with enough samples."""
        return [life for life in self._lives.values() if len(life.rss) >= FEWEST_SAMPLES]
