"""Seeds of judgements: functions of names and counters only, as all seeds are (`yatt_core.keys`)."""

from __future__ import annotations

from yatt_core.keys import stable_seed


def judgement_seeds(
    part: str, count: int, seed: int, branch: int, iteration: int, ordinal: int, sample: int
) -> tuple[int, ...]:
    """Returns the seeds of all judgements of one response by one reward part, [count].

    part: name of the part, so that the judges of a run have different seeds.
    ordinal: ordinal of the prompt.

    All seeds differ from those that sampled the response. If `count` is raised, the first seeds stay the same.
    """
    purpose = f"judgement of {part}"
    return tuple(stable_seed(purpose, seed, branch, iteration, ordinal, sample, number) for number in range(count))
