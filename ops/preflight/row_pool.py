"""Tries rows in reward processes of their own, one for each core.

Consumes rows with the function that tries them. Produces their outcomes, in the order of the rows. A few rows are tried in
the reward process that this process has anyway.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import SimpleQueue

from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.calls import CallLimits, RewardOutcome
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.process import Loaded, RewardProcess, reward_process
from yatt_core.rewards.registry import FunctionName

CHUNK = 16
"""Rows that are sent to a process at once."""
FEW = 64
"""Rows for which no further processes are started."""
AHEAD = 4
"""Chunks for each process that may be waiting: what is read ahead stays in memory."""
SECONDS = 1.0
"""Between two calls of who is told while nothing ends."""
NOTHING = Completion.of_turns("", [""], 0)


@dataclass(frozen=True, slots=True)
class RowTrial:
    """A row to be tried.

    number: of the part among those that are checked.
    digest: of all on which the outcome depends.
    """

    number: int
    digest: str
    prompt: Prompt
    function: FunctionName
    seconds: float


Tried = tuple[RowTrial, RewardOutcome]


def try_jobs(jobs: Iterable[RowTrial], told: Callable[[], None]) -> Iterator[Tried]:
    """Yields each job with its outcome, in order.

    told: called whenever some jobs have ended, and every second.

    Raises as `RewardProcess` does.
    """
    waiting = iter(jobs)
    first = list(itertools.islice(waiting, FEW + 1))
    if len(first) > FEW:
        yield from _on_all_cores(itertools.chain(first, waiting), told)
        return
    trial = _Trial()
    for chunk in (first[start : start + CHUNK] for start in range(0, len(first), CHUNK)):
        yield from trial.outcomes(reward_process(), chunk)
        told()


def _on_all_cores(jobs: Iterator[RowTrial], told: Callable[[], None]) -> Iterator[Tried]:
    cores = len(os.sched_getaffinity(0))
    processes = [RewardProcess() for _ in range(cores)]
    free = SimpleQueue[RewardProcess]()
    for process in processes:
        free.put(process)
    trial = _Trial()

    def one(chunk: Sequence[RowTrial]) -> list[Tried]:
        process = free.get()
        try:
            return trial.outcomes(process, chunk)
        finally:
            free.put(process)

    running = deque[Future[list[Tried]]]()
    pool = ThreadPoolExecutor(cores)
    try:
        for chunk in iter(lambda: list(itertools.islice(jobs, CHUNK)), []):
            running.append(pool.submit(one, chunk))
            while len(running) >= cores * AHEAD or (running and running[0].done()):
                yield from _awaited(running.popleft(), told)
        while running:
            yield from _awaited(running.popleft(), told)
    finally:
        pool.shutdown(cancel_futures=True)
        for process in processes:
            process.close()


def _awaited(running: Future[list[Tried]], told: Callable[[], None]) -> list[Tried]:
    while not wait([running], SECONDS).done:
        told()
    told()
    return running.result()


class _Trial:
    """Calls functions, each of which is loaded once by each process."""

    def __init__(self) -> None:
        self._loaded = dict[int, Loaded]()

    def outcomes(self, process: RewardProcess, chunk: Sequence[RowTrial]) -> list[Tried]:
        """Returns the outcomes of jobs; consecutive ones of the same function are sent at once."""
        found = list[Tried]()
        for number, same in itertools.groupby(chunk, key=lambda job: job.number):
            group = list(same)
            if number not in self._loaded:
                self._loaded[number] = process.load(group[0].function)
            loaded = self._loaded[number]
            candidates = [Candidate(job.prompt, NOTHING) for job in group]
            calls = [candidates] if loaded.unit == "batch" else [[one] for one in candidates]
            limits = CallLimits(group[0].seconds * len(calls[0]), 1.0)
            outcomes = process.evaluate(loaded, calls, limits, stop=False)
            found += zip(group, itertools.chain.from_iterable(outcomes), strict=True)
        return found
