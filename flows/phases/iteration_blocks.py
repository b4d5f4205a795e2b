"""Blocks of iterations, which group a session's task runs in Prefect's UI. Pure.

Blocks begin at fixed iterations, whichever session drives them, and there are at most `MOST` of them in a run. A run of
200 iterations with seven phases each, some 1,500 task runs, is a graph of 20 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST = 50
SIZES = (10, 20, 50)
"""Numbers of iterations in a block, and their multiples by powers of ten: the smallest one that suffices is used."""
REWARD = "reward/mean"
ACCURACY = "evaluation/accuracy"
SECONDS = "seconds/iteration"
SPEED = "tokens_per_second"
COLUMNS = {"reward": REWARD, "accuracy": ACCURACY, "seconds": SECONDS, "tokens per second": SPEED}
"""The metrics that a block shows, by their heading."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of iterations, as far as one session has driven it on one branch.

    first: the first iteration of the session in the block.
    last: the block's last iteration.
    """

    branch: int
    first: int
    last: int

    def holds(self, branch: int, iteration: int) -> bool:
        """Returns True if the iteration of a branch belongs to the block."""
        return branch == self.branch and self.first <= iteration <= self.last

    @property
    def name(self) -> str:
        """The block in words, such as `iterations 11 to 20`."""
        what = f"iteration {self.first}" if self.first >= self.last else f"iterations {self.first} to {self.last}"
        return what + (f" of branch {self.branch}" if self.branch else "")

    @property
    def key(self) -> str:
        """The block in letters, digits and hyphens, for artifacts."""
        return self.name.replace(" ", "-")


def block_of(branch: int, iteration: int, target: int) -> Block:
    """Returns the block of a session that continues with `iteration`.

    Iteration 0 belongs to the first block.
    """
    size = block_size(target)
    last = size if iteration <= 0 else -(-iteration // size) * size
    return Block(branch, iteration, max(iteration, min(last, target)))


def block_size(target: int) -> int:
    """Returns the number of iterations in the blocks of a run with this target."""
    power = 1
    while True:
        for size in SIZES:
            if size * power * MOST >= target:
                return size * power
        power *= 10


def table(points: Mapping[str, Mapping[int, float]], iterations: Sequence[int]) -> list[dict[str, float | int | str]]:
    """Returns a row for each iteration with its metrics; a metric that it does not have is empty.

    points: values by iteration, by metric.
    """
    return [
        {"iteration": iteration}
        | {heading: _rounded(points.get(key, {}).get(iteration)) for heading, key in COLUMNS.items()}
        for iteration in iterations
    ]


def _rounded(value: float | None) -> float | str:
    return "" if value is None else float(f"{value:.4g}")


def line(points: Mapping[str, Mapping[int, float]], iteration: int, target: int) -> str:
    """Returns an iteration's metrics in one line."""
    parts = [
        f"{heading} {points[key][iteration]:.4g}"
        for heading, key in COLUMNS.items()
        if iteration in points.get(key, {})
    ]
    return ", ".join([f"iteration {iteration} of {target}", *parts])
