"""Seeds of judgements: functions of names and counters alone, as all seeds are (`yatt_core.keys`)."""

from __future__ import annotations

from yatt_core.keys import stable_seed


def judgement_seeds(
    part: str, count: int, seed: int, branch: int, iteration: int, ordinal: int, sample: int
) -> tuple[int, ...]:
    """Seeds of all judgements of one response by one part of the reward, [count]; none is that of a response's own noise.

    part: its name, so that two judges of a run draw apart. ordinal: of the prompt. A larger count begins with the same seeds.
    """
    purpose = f"judgement of {part}"
    return tuple(stable_seed(purpose, seed, branch, iteration, ordinal, sample, number) for number in range(count))
