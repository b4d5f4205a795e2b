"""The task `running_sums`, beside those of reasoning-gym: several steps, each of which a rule can check by itself.

A prompt has numbers; the answer has their sum so far after each of them, modulo a number, one on each line. A response is
right if its last line is. The steps of a response are its lines: the reward function `running_sums_steps` names those
that do not follow from the line before.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from typing import Any

from reasoning_gym.factory import ProceduralDataset, register_dataset

TASK = "running_sums"


@dataclass
class RunningSumsConfig:
    """Options of the task.

    numbers: how many numbers a prompt has.
    modulus: sums are taken modulo this; numbers are from 0 to one less.
    """

    numbers: int = 6
    modulus: int = 10
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        """Raises `ValueError` for options that make no task."""
        if not 1 <= self.numbers <= 1000:
            raise ValueError(f"numbers: expected 1 to 1000 (given: {self.numbers})")
        if not 2 <= self.modulus <= 1_000_000:
            raise ValueError(f"modulus: expected 2 to 1000000 (given: {self.modulus})")


class RunningSums(ProceduralDataset):  # type: ignore[misc]  # the package has no types
    """Entries of the task; entry i is drawn from Random(seed + i)."""

    def __init__(self, config: RunningSumsConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        random, config = Random(self.seed + idx), self.config
        numbers = [random.randrange(config.modulus) for _ in range(config.numbers)]
        sums = itertools.accumulate(numbers, lambda so_far, number: (so_far + number) % config.modulus)
        return {
            "question": f"Running sums modulo {config.modulus}: {' '.join(map(str, numbers))}",
            "answer": "\n".join(map(str, sums)),
            "metadata": {"numbers": numbers, "modulus": config.modulus},
        }

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Returns 1 if the last line of a response is the sum of all numbers, else 0."""
        lines = (answer or "").split()
        return float(bool(lines) and lines[-1] == entry["answer"].rpartition("\n")[2])


register_dataset(TASK, RunningSums, RunningSumsConfig)
