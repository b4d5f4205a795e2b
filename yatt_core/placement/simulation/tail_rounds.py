"""What each iteration contains if more prompts are started than needed and the long ones get rounds of their own.

Consumes a supply of groups. Produces the content of one iteration after another, decided by tokens, whatever the
machine. A short round ends at the token at which enough groups are complete. The others keep what they have drawn and go
on in a long round: drawing them again would give them a second chance to be short, and what is learnt from would be
shorter than what is drawn. Units: tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.placement.simulation.groups import Content, Started, Supply, learnt_from, wave_of
from yatt_core.placement.work import SampleWork, WaveWork


@dataclass(frozen=True, slots=True)
class TailRounds:
    """How many prompts a round starts.

    prompts: groups that an iteration learns from.
    started: groups that a short round starts.
    """

    prompts: int
    started: int

    def __post_init__(self) -> None:
        if self.started <= self.prompts:
            raise ConfigurationError(f"started: {self.started} groups leave no tail beyond the {self.prompts} needed")

    @property
    def _longs(self) -> int:
        """Long rounds that as many groups as a short round starts fill."""
        return math.ceil(self.started / self.prompts)

    @property
    def patience(self) -> int:
        """Iterations after which a group gets its long round even if too few wait to fill one."""
        return self._longs * math.ceil(self.prompts / (self.started - self.prompts))

    @property
    def staleness_bound(self) -> int:
        """Iterations between the first token of a response and the iteration that learns from it, at most.

        A group that waits has fewer than `started` groups before it. Once it has waited for `patience` iterations, long
        rounds follow one another until it is learnt from.
        """
        return self.patience + self._longs


class TailRun:
    """A run with tail rounds. waiting: the groups that wait for a long round, in the order of starting."""

    def __init__(self, supply: Supply, rounds: TailRounds, tool_tokens: int = 0) -> None:
        self._supply = supply
        self._rounds = rounds
        self._tool_tokens = tool_tokens
        self.waiting: list[Started] = []

    def next(self, iteration: int) -> Content:
        """Returns the content of the next iteration: a long round if enough groups wait for one, else a short one.

        If a long round yields too few groups that count, short rounds complete the iteration.
        """
        prompts = self._rounds.prompts
        long = self._long(iteration)
        rounds: list[WaveWork] = []
        learnt: list[Started] = []
        invalid: list[Started] = []
        drawing: set[int] = set()
        in_flight = len(self.waiting)
        while len(learnt) < prompts:
            need = prompts - len(learnt)
            if long and self.waiting:
                chosen = self.waiting[:need]
                self.waiting = self.waiting[need:]
                cut = max(one.group.longest for one in chosen)
            else:
                count = math.ceil(self._rounds.started * need / prompts)
                chosen = [Started.of(group, iteration) for group in self._supply.take(iteration, count)]
                in_flight += count
                cut = cut_of(chosen, need)
            rounds.append(self._round(chosen, iteration, cut, drawing))
            ended = sorted((one for one in chosen if one.completed is not None), key=lambda one: one.completed or ())
            counted = [one for one in ended if one.group.valid][:need]
            gone = [one for one in ended if not one.group.valid]
            learnt += counted
            invalid += gone
            self.waiting += [one for one in chosen if one not in counted and one not in gone]
        return Content(
            rounds=tuple(wave for wave in rounds if wave.samples),
            learnt=tuple(learnt_from(one) for one in learnt),
            invalid=tuple(one.group for one in invalid),
            in_flight=in_flight,
            waiting=sum(one.completed is not None for one in self.waiting),
            drawing=len(drawing),
        )

    def _long(self, iteration: int) -> bool:
        """Returns True if an iteration begins with a long round."""
        if len(self.waiting) >= self._rounds.prompts:
            return True
        return bool(self.waiting) and iteration - self.waiting[0].iteration >= self._rounds.patience

    def _round(self, chosen: list[Started], iteration: int, cut: int, drawing: set[int]) -> WaveWork:
        """Draws every response of the groups up to `cut` tokens; adds the responses that draw to `drawing`."""
        pieces: list[list[SampleWork]] = []
        for started in chosen:
            drawn: list[SampleWork] = []
            for response in started.responses:
                if response.left and response.done < cut:
                    drawn.append(response.draw(iteration, cut - response.done, self._tool_tokens))
                    drawing.add(id(response))
            pieces.append(drawn)
            if not any(response.left for response in started.responses):
                started.completed = (started.group.longest, started.group.ordinal)
        return wave_of(pieces, [one.group.valid for one in chosen])


def cut_of(chosen: list[Started], need: int) -> int:
    """Returns the least number of tokens at which `need` groups that count are complete; the most if there are fewer."""
    counted = sorted(one.group.longest for one in chosen if one.group.valid)
    if len(counted) >= need:
        return counted[need - 1]
    return max(one.group.longest for one in chosen)
