"""What each iteration contains if responses are drawn in slices: decided by tokens, whatever the machine.

Consumes a supply of groups. Produces the content of one iteration after another. No response is ever dropped: what an
iteration does not learn from stays in flight. Units: tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.placement.simulation.groups import Content, Started, Supply, learnt_from, wave_of
from yatt_core.placement.work import SampleWork, WaveWork


@dataclass(frozen=True, slots=True)
class Slices:
    """How responses are sliced.

    prompts: groups that an iteration learns from.
    tokens: the most new tokens that a response gets in a round; None: as many as complete enough groups.
    most: iterations in which a response may draw; in the last one it goes on to its end.
    in_flight: groups that are started and not learnt from.
    """

    prompts: int
    tokens: int | None
    most: int
    in_flight: int

    def __post_init__(self) -> None:
        if self.in_flight < self.prompts:
            raise ConfigurationError(
                f"in_flight: {self.in_flight} groups in flight never complete the {self.prompts} of an iteration"
            )

    @property
    def staleness_bound(self) -> int:
        """Iterations between the first token of a response and the iteration that learns from it, at most.

        A response draws in at most `most` iterations. Once complete, its group has at most `in_flight` - 1 groups
        before it, of which each iteration learns from `prompts`.
        """
        return self.most - 1 + (self.in_flight - 1) // self.prompts


class SlicedRun:
    """A run that draws in slices. in_flight: what is started and not learnt from, in the order of starting."""

    def __init__(self, supply: Supply, slices: Slices, tool_tokens: int = 0) -> None:
        self._supply = supply
        self._slices = slices
        self._tool_tokens = tool_tokens
        self.in_flight: list[Started] = []

    def next(self, iteration: int) -> Content:
        """Returns the content of the next iteration.

        In a round each unfinished response draws one slice. If fewer groups than needed are complete after a round,
        another follows under the same weights, unless the supply has ended. Groups are learnt from in the order of the
        iteration, round and new tokens at which they completed, then of starting.
        """
        slices = self._slices
        rounds: list[WaveWork] = []
        invalid: list[Started] = []
        drawing: set[int] = set()
        in_flight = 0
        complete = self._complete()
        while True:
            new = self._supply.take(iteration, slices.in_flight - len(self.in_flight))
            self.in_flight += [Started.of(group, iteration) for group in new]
            in_flight = max(in_flight, len(self.in_flight) + len(invalid))
            if all(one.completed is not None for one in self.in_flight):
                break
            least = slices.tokens or self._cut(max(1, slices.prompts - len(complete)))
            rounds.append(self._round(iteration, len(rounds), least, drawing))
            gone = [one for one in self.in_flight if one.completed is not None and not one.group.valid]
            invalid += gone
            self.in_flight = [one for one in self.in_flight if one.completed is None or one.group.valid]
            complete = self._complete()
            if len(complete) >= slices.prompts:
                break
        learnt = complete[: slices.prompts]
        leaving = {one.group.ordinal for one in learnt}
        self.in_flight = [one for one in self.in_flight if one.group.ordinal not in leaving]
        return Content(
            rounds=tuple(wave for wave in rounds if wave.samples),
            learnt=tuple(learnt_from(one) for one in learnt),
            invalid=tuple(one.group for one in invalid),
            in_flight=in_flight,
            waiting=len(complete) - len(learnt),
            drawing=len(drawing),
        )

    def _complete(self) -> list[Started]:
        """Returns the complete groups in flight, in the order of learning."""
        complete = [one for one in self.in_flight if one.completed is not None]
        return sorted(complete, key=lambda one: one.completed or ())

    def _cut(self, need: int) -> int:
        """Returns the least number of new tokens of each response with which `need` more groups that count are complete.

        If the groups in flight are fewer, returns the number that completes them all.
        """
        left = {id(one): max(each.left for each in one.responses) for one in self.in_flight if one.completed is None}
        counted = sorted(left[id(one)] for one in self.in_flight if one.completed is None and one.group.valid)
        return counted[need - 1] if len(counted) >= need else max(left.values())

    def _round(self, iteration: int, number: int, tokens: int, drawing: set[int]) -> WaveWork:
        """Draws a slice of `tokens` tokens of every unfinished response; adds those that draw to `drawing`."""
        pieces: list[list[SampleWork]] = []
        valid: list[bool] = []
        for started in self.in_flight:
            if started.completed is not None:
                continue
            drawn: list[SampleWork] = []
            for response in started.responses:
                if response.left:
                    drawn.append(response.draw(iteration, self._most(started, iteration, tokens), self._tool_tokens))
                    drawing.add(id(response))
            pieces.append(drawn)
            valid.append(started.group.valid)
            if not any(response.left for response in started.responses):
                last = max(sum(one.turns) for one in drawn)
                started.completed = (iteration, number, last, started.group.ordinal)
        return wave_of(pieces, valid)

    def _most(self, started: Started, iteration: int, tokens: int) -> int:
        """Returns how many tokens a response of the group may draw in a round."""
        last = iteration - started.iteration + 1 >= self._slices.most
        return started.group.longest if last else tokens
