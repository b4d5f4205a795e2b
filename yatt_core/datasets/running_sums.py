"""The task `running_sums`, beside those of reasoning-gym: several steps, each of which a rule can check by itself.

A prompt has numbers; the answer has their sum so far after each of them, modulo a number, one on each line. A response is
right if its last line is. The steps of a response are its lines: the reward function `running_sums_steps` names those
that do not follow from the line before.

With `random_pairs`, the answers are demonstrations of a writer who does not know every sum: some pairs of a line and the
next number are followed by a random line. A policy that learns from them knows the other pairs, and nothing of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from yatt_core.keys import stable_seed

TASK = "running_sums"


@dataclass
class RunningSumsConfig:
    """Options of the task.

    numbers: how many numbers a prompt has.
    modulus: sums are taken modulo this; numbers are from 0 to one less.
    random_pairs: fraction of the pairs of a sum and the next number, the same in all entries, that the answers follow
        with a random line. Later lines follow from that line. Scores do not depend on it.
    """

    numbers: int = 6
    modulus: int = 10
    random_pairs: float = 0.0
    seed: int | None = None
    size: int = 500

    def validate(self) -> None:
        """Raises `ValueError` for options that make no task."""
        if not 1 <= self.numbers <= 1000:
            raise ValueError(f"numbers: expected 1 to 1000 (given: {self.numbers})")
        if not 2 <= self.modulus <= 1_000_000:
            raise ValueError(f"modulus: expected 2 to 1000000 (given: {self.modulus})")
        if not 0 <= self.random_pairs <= 1:
            raise ValueError(f"random_pairs: expected 0 to 1 (given: {self.random_pairs})")


class RunningSums:
    """Entries of the task; entry i is drawn from Random(seed + i)."""

    config: RunningSumsConfig
    seed: int

    def __getitem__(self, idx: int) -> dict[str, Any]:
        random = Random(self.seed + idx)
        config = self.config
        numbers = [random.randrange(config.modulus) for _ in range(config.numbers)]
        so_far = 0
        lines = list[int]()
        for number in numbers:
            is_random = is_random_pair(config, so_far, number)
            so_far = random.randrange(config.modulus) if is_random else (so_far + number) % config.modulus
            lines.append(so_far)
        return {
            "question": f"Running sums modulo {config.modulus}: {' '.join(map(str, numbers))}",
            "answer": "\n".join(map(str, lines)),
            "metadata": {"numbers": numbers, "modulus": config.modulus},
        }

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Returns 1 if the last line of a response is the sum of all numbers, else 0."""
        lines = (answer or "").split()
        metadata = entry["metadata"]
        return float(bool(lines) and lines[-1] == str(sum(metadata["numbers"]) % metadata["modulus"]))


def is_random_pair(config: RunningSumsConfig, so_far: int, number: int) -> bool:
    """Returns whether the answers follow a sum and the next number with a random line."""
    return stable_seed(TASK, config.modulus, so_far, number) / 2**64 < config.random_pairs


def register(factory: Any) -> None:
    """Adds the task to the registry of the package's module `factory`, which may have it, as one of the package's datasets."""

    class Task(RunningSums, factory.ProceduralDataset):  # type: ignore[misc]  # the package has no types
        def __init__(self, config: RunningSumsConfig) -> None:
            super().__init__(config=config, seed=config.seed, size=config.size)

    if TASK not in factory.DATASETS:
        factory.register_dataset(TASK, Task, RunningSumsConfig)
