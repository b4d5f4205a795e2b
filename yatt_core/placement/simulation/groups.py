"""Groups of samples on their way through a run: what has been drawn of each response, and which piece is drawn next.

Consumes a workload. Produces groups in the order in which a run starts them, pieces of work for a wave, and what an
iteration learns from with the iteration in which each token was drawn. Nothing here knows instances or a clock: what an
iteration contains follows from tokens alone. Units: tokens; iterations are counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from yatt_core.placement.work import SampleWork, WaveWork, draw_wave
from yatt_core.placement.workload import Scenario

WARM_UP_WAVES = 10_000
"""The number of the first wave of a warm-up iteration; no iteration of a workload has as many waves."""


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt and its samples, with their whole lengths.

    ordinal: position in which the run started it.
    valid: whether the group counts towards an iteration.
    """

    ordinal: int
    samples: tuple[SampleWork, ...]
    valid: bool

    @property
    def longest(self) -> int:
        """Tokens of the longest response."""
        return max(sample.response for sample in self.samples)

    @property
    def tokens(self) -> int:
        """Tokens of prompts and responses, which a trainer reads."""
        return sum(sample.prompt + sample.response for sample in self.samples)


class Supply:
    """The groups that a run starts, drawn with the load of the iteration in which it starts them.

    warm_up: iterations before the workload's first one, with the load of the first one and draws of their own.
    """

    def __init__(self, workload: Scenario, warm_up: int = 0) -> None:
        self._workload = workload
        self._warm_up = warm_up
        self._iteration = -1
        self._wave = 0
        self._left: list[tuple[tuple[SampleWork, ...], bool]] = []
        self.started = 0

    def take(self, iteration: int, count: int) -> list[Group]:
        """Returns the next groups that are started in an iteration."""
        if iteration != self._iteration:
            self._iteration = iteration
            self._wave = 0
            self._left = []
        while len(self._left) < count:
            self._left += self._drawn()
        taken = self._left[:count]
        self._left = self._left[count:]
        groups = [Group(self.started + number, samples, valid) for number, (samples, valid) in enumerate(taken)]
        self.started += count
        return groups

    def _drawn(self) -> list[tuple[tuple[SampleWork, ...], bool]]:
        """Draws the next wave of the iteration."""
        number = self._iteration - self._warm_up
        wave = self._wave if number >= 0 else WARM_UP_WAVES * -number + self._wave
        self._wave += 1
        return split_groups(draw_wave(self._workload, max(0, number), wave, self._workload.samples.prompts))


def split_groups(wave: WaveWork) -> list[tuple[tuple[SampleWork, ...], bool]]:
    """Returns the samples of each group of a wave, and whether the group is valid."""
    groups: list[list[SampleWork]] = [[] for _ in wave.valid]
    for sample in wave.samples:
        groups[sample.group].append(sample)
    return [(tuple(samples), valid) for samples, valid in zip(groups, wave.valid, strict=True)]


@dataclass(slots=True, eq=False)
class Response:
    """A response in progress.

    stretches: iteration and number of tokens of each stretch that has been drawn, in order.
    """

    work: SampleWork
    stretches: list[tuple[int, int]] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Tokens drawn so far."""
        return sum(tokens for _, tokens in self.stretches)

    @property
    def left(self) -> int:
        """Tokens still to be drawn."""
        return self.work.response - self.done

    def draw(self, iteration: int, most: int, tool_tokens: int) -> SampleWork:
        """Draws at most this many tokens in an iteration; returns the piece as a sample of its own."""
        tokens = min(most, self.left)
        drawn = piece(work=self.work, done=self.done, tokens=tokens, tool_tokens=tool_tokens)
        if self.stretches and self.stretches[-1][0] == iteration:
            tokens += self.stretches.pop()[1]
        self.stretches.append((iteration, tokens))
        return drawn


def piece(work: SampleWork, done: int, tokens: int, tool_tokens: int) -> SampleWork:
    """Returns the work of drawing the `tokens` tokens of a response that follow the first `done` ones.

    What was drawn before is part of the prompt and is read again: the engine's cache was made under older weights. A
    tool that was called at the end of the piece before has answered by now. Judgements belong to the piece that ends
    the response.
    """
    turns: list[int] = []
    waits: list[float] = []
    before = done
    called = 0
    for number, turn in enumerate(work.turns):
        if before >= turn:
            before -= turn
            called += number + 1 < len(work.turns)
            continue
        taken = min(turn - before, tokens - sum(turns))
        if taken == 0:
            break
        if turns:
            waits.append(work.waits[number - 1])
        turns.append(taken)
        before = 0
    ends = done + tokens == work.response
    return replace(
        work,
        first=work.first or done > 0,
        prompt=work.prompt + done + tool_tokens * called,
        turns=tuple(turns),
        waits=tuple(waits),
        judge=work.judge if ends else (),
    )


@dataclass(slots=True, eq=False)
class Started:
    """A group that a run has started and not learnt from.

    iteration: when it was started.
    completed: sorts complete groups by the moment at which they completed; None while a response is unfinished.
    """

    group: Group
    iteration: int
    responses: list[Response]
    completed: tuple[int, ...] | None = None

    @classmethod
    def of(cls, group: Group, iteration: int) -> Started:
        """Returns a group of which nothing has been drawn."""
        return cls(group, iteration, [Response(sample) for sample in group.samples])

    @property
    def slices(self) -> int:
        """Iterations in which the longest-lasting response has drawn so far."""
        return max(len(response.stretches) for response in self.responses)


@dataclass(frozen=True, slots=True)
class Learnt:
    """A group that an iteration learns from.

    started: iteration in which the group was started.
    stretches: of each response, iteration and number of tokens of each stretch.
    """

    group: Group
    started: int
    stretches: tuple[tuple[tuple[int, int], ...], ...]


def learnt_from(started: Started) -> Learnt:
    """Returns a complete group as an iteration learns from it."""
    return Learnt(started.group, started.iteration, tuple(tuple(each.stretches) for each in started.responses))


@dataclass(frozen=True, slots=True)
class Content:
    """What an iteration draws and learns from, whatever the machine.

    rounds: the work that the engines do, one wave after another.
    learnt: the groups learnt from, in their order.
    invalid: groups that were completed and do not count.
    in_flight: groups that are started and not learnt from, while the iteration draws.
    waiting: of these, the groups that are complete and wait for a later iteration.
    drawing: responses of which the iteration draws tokens.
    """

    rounds: tuple[WaveWork, ...]
    learnt: tuple[Learnt, ...]
    invalid: tuple[Group, ...]
    in_flight: int
    waiting: int
    drawing: int

    @property
    def tokens(self) -> int:
        """Tokens of all groups that leave, which the cost of training counts."""
        return sum(one.group.tokens for one in self.learnt) + sum(group.tokens for group in self.invalid)


def wave_of(pieces: Sequence[Sequence[SampleWork]], valid: Iterable[bool]) -> WaveWork:
    """Returns a wave of pieces, group by group; groups without a piece are left out."""
    drawing = [(group, counts) for group, counts in zip(pieces, valid, strict=True) if group]
    samples = tuple(replace(one, group=number) for number, (group, _) in enumerate(drawing) for one in group)
    return WaveWork(samples, tuple(counts for _, counts in drawing))


def whole_content(waves: Sequence[WaveWork], iteration: int, started: int) -> Content:
    """Returns the content of an iteration that draws its waves whole and learns from all that counts.

    started: groups that the run has started before.
    """
    drawn = [group for wave in waves for group in split_groups(wave)]
    groups = [Group(started + number, samples, valid) for number, (samples, valid) in enumerate(drawn)]
    learnt = [
        Learnt(group, iteration, tuple(((iteration, sample.response),) for sample in group.samples))
        for group in groups
        if group.valid
    ]
    return Content(
        rounds=tuple(waves),
        learnt=tuple(learnt),
        invalid=tuple(group for group in groups if not group.valid),
        in_flight=len(groups),
        waiting=0,
        drawing=sum(len(group.samples) for group in groups),
    )
