"""The plan of an iteration's optimizer steps: which samples a step takes, on which rank, in which micro-batch.

A pure function of the samples' lengths and the spec, so that every rank and every replay makes the same plan.
Its digest is part of the update's fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.engines.train.steps.balance import balance_equal, pack
from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One optimizer step.

    samples: indices of all samples that the step learns from.
    parts: rank -> micro-batches -> indices of samples.
    packed: whether the samples of a micro-batch are concatenated rather than each in a row of its own.
    """

    samples: Int64
    parts: tuple[tuple[Int64, ...], ...]
    packed: bool = False


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What shapes a plan in addition to the samples.

    budget: maximum number of tokens of a micro-batch, including padding.
    packed: as in `StepPlan`.
    even: whether all ranks get the same number of micro-batches, because they meet in every pass.
    """

    ranks: int
    budget: int
    epochs: int
    mini_batches: int
    packed: bool = False
    even: bool = False

    def step(self, lengths: Int64, samples: Int64) -> StepPlan:
        """Plans one step, or one pass, over some samples. Raises as `plan_step` does."""
        return plan_step(
            lengths=lengths,
            samples=samples,
            ranks=self.ranks,
            budget=self.budget,
            packed=self.packed,
            even=self.even,
        )


def plan_steps(lengths: Int64, group_offsets: Int64, shape: PlanShape, *seeds: int) -> tuple[StepPlan, ...]:
    """Plans epochs x mini-batches steps; a mini-batch is a part of the prompts with all their samples.

    lengths: [N], tokens of each sample.
    group_offsets: [prompts + 1].
    seeds: determine the order of the prompts, together with the epoch; a single step takes the prompts in
        the order of the batch.
    """
    prompts = np.arange(len(group_offsets) - 1, dtype=np.int64)
    steps = []
    for epoch in range(shape.epochs):
        order = prompts
        if shape.epochs * shape.mini_batches > 1:
            order = seeded_permutation(len(prompts), "mini_batches", *seeds, epoch)
        for members in np.array_split(order, shape.mini_batches):
            ranges = [np.arange(group_offsets[prompt], group_offsets[prompt + 1]) for prompt in np.sort(members)]
            steps.append(shape.step(lengths, np.concatenate([np.empty(0, dtype=np.int64), *ranges])))
    return tuple(steps)


def plan_step(
    lengths: Int64, samples: Int64, ranks: int, budget: int, packed: bool = False, even: bool = False
) -> StepPlan:
    """Distributes samples over ranks, with equal counts and nearly equal tokens, and forms micro-batches.

    Raises `ConfigurationError` for a sample that is longer than the budget.
    """
    shares = balance_equal(lengths[samples], ranks)
    cut = packed_batches if packed else padded_batches
    parts = tuple(cut(lengths, samples[share], budget) for share in shares)
    return StepPlan(samples, evened(parts) if even else parts, packed)


def evened(parts: Sequence[tuple[Int64, ...]]) -> tuple[tuple[Int64, ...], ...]:
    """Equalises the number of micro-batches over the ranks, at least one each.

    Splits the micro-batches with the most samples in two; if none can be split, adds empty ones.
    """
    wanted = max(1, *(len(part) for part in parts))
    return tuple(_cut(part, wanted) for part in parts)


def _cut(part: tuple[Int64, ...], wanted: int) -> tuple[Int64, ...]:
    batches = list(part)
    while len(batches) < wanted and any(len(batch) > 1 for batch in batches):
        largest = max(range(len(batches)), key=lambda place: len(batches[place]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return (*batches, *[np.empty(0, dtype=np.int64)] * (wanted - len(batches)))


def packed_batches(lengths: Int64, samples: Int64, budget: int) -> tuple[Int64, ...]:
    """Packs samples into few micro-batches of at most `budget` tokens; the longest sample of each comes first.

    Raises `ConfigurationError` for a sample that is longer than the budget.
    """
    order = _longest_first(lengths, samples, budget)
    return tuple(order[members] for members in pack(lengths[order], budget))


def padded_batches(lengths: Int64, samples: Int64, budget: int) -> tuple[Int64, ...]:
    """Groups samples of similar length into as few batches as possible; rows x longest row is at most `budget`.

    The longest samples come first. Raises `ConfigurationError` for a sample that is longer than the budget.
    """
    order = _longest_first(lengths, samples, budget)
    batches = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        stop = start + budget // max(longest, 1)
        batches.append(order[start:stop])
        start = stop
    return tuple(batches)


def _longest_first(lengths: Int64, samples: Int64, budget: int) -> Int64:
    order = samples[np.argsort(-lengths[samples], kind="stable")]
    if len(order) and lengths[order[0]] > budget:
        raise ConfigurationError(
            f"sample {int(order[0])} has {int(lengths[order[0]])} tokens, but trainer.engine.micro_batch_tokens is {budget};"
            " raise it"
        )
    return order


def plan_digest(steps: Sequence[StepPlan]) -> str:
    """Returns the sha256 of the assignment of samples."""
    digest = hashlib.sha256()
    for step in steps:
        for rank, part in enumerate(step.parts):
            for batch in part:
                digest.update(f"{rank}:{','.join(map(str, batch.tolist()))};".encode())
        digest.update(b"|")
    return digest.hexdigest()


def seeded_permutation(count: int, purpose: str, *seeds: int) -> Int64:
    """Returns a permutation of 0..count-1 that depends only on purpose and seeds, not on machine or version."""
    keys = np.array([stable_seed(purpose, *seeds, index) for index in range(count)], dtype=np.uint64)
    return np.argsort(keys, kind="stable").astype(np.int64)
