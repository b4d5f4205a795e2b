"""How stale what an iteration learns from is: measured in a run's contents, and in closed form.

Consumes contents. Produces lags in iterations: 0 if a token was drawn in the iteration that learns from it.

The closed form is Little's law. A group is in the run from the iteration that starts it to the one that learns from it;
summed over a run, the iterations that groups spend in it equal the groups that iterations have in it. A group spends as
many iterations drawing as the longest of its responses, which is `tail` times the mean response; the rest it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.placement.simulation.groups import Content


@dataclass(frozen=True, slots=True)
class Staleness:
    """Lags of what was learnt from, in iterations. tokens: mean over tokens. starts: mean over groups' first tokens."""

    tokens: float
    starts: float
    most: int


def staleness_of(contents: Sequence[Content], first: int = 0) -> Staleness:
    """Measures the lags in the contents of consecutive iterations. first: the number of the first of them."""
    weighted = 0
    drawn = 0
    starts: list[int] = []
    most = 0
    for number, content in enumerate(contents, start=first):
        for one in content.learnt:
            starts.append(number - one.started)
            for iteration, tokens in (stretch for stretches in one.stretches for stretch in stretches):
                weighted += (number - iteration) * tokens
                drawn += tokens
                most = max(most, number - iteration)
    return Staleness(tokens=weighted / drawn, starts=sum(starts) / len(starts), most=most)


def mean_staleness(utilisation: float, places: int, batch: int, group: int, tail: float, waiting: float) -> float:
    """Returns the mean lag of groups' first tokens, in closed form.

    utilisation: fraction of the places in which a response draws in an iteration, in the mean.
    places: responses that can draw in an iteration.
    batch: groups that an iteration learns from.
    group: responses of a group.
    tail: iterations in which a group's longest-lasting response draws, over those of a response, in the mean.
    waiting: complete groups that wait for a later iteration, in the mean.
    """
    return utilisation * places * tail / (batch * group) + waiting / batch - 1.0
