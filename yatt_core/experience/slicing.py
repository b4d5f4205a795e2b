"""Which responses draw a slice, and which groups an iteration learns from. A pure state machine without I/O.

Consumes a rule, the groups in flight, prompts that are new, and after each round the new tokens with which groups completed,
which follow from tokens alone: neither the clock nor the number of controllers and instances decides anything. Produces the
rounds of an iteration, the groups that it learns from, and the groups that stay in flight. No group is ever dropped for being
late. Units: tokens; iterations are counted from 1.

In each round every unfinished response draws at most a slice; in the last iteration in which it may draw, it goes on to its end.
Another round follows under the same weights until enough groups are complete. Groups are learnt from in the order of the
iteration, the round and the new tokens with which they completed, then of starting.

With a tail, rounds only say how far engines draw at a time. The iteration ends at the token, counted in each response from its
beginning, at which enough groups are complete, and with them those that may draw in no later one. What was drawn behind that is
thrown away: groups that completed behind it go on again, so that neither rounds nor their length decide what is learnt from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from yatt_core.errors import InfrastructureError
from yatt_core.experience.dynamic_sampling import FIRST_AVERAGE, SamplingRule, WaveOutcome, WavePlan
from yatt_core.protocols.receipts import Admission, PromptRef, ShardPlace
from yatt_core.spec import RunSpec

SLICES = "slices"
"""Key of a wave's plan and outcome in the ledger, with what its groups draw in a round, and what that has led to."""


@dataclass(frozen=True, slots=True)
class StartedGroup:
    """A group that is started and not learnt from.

    iteration: when it was started; the seeds of its responses depend on it.
    sealed: where what is drawn of it was sealed last; None before its first slice.
    completed: the iteration, the round and the new tokens with which it completed; None while a response is unfinished.
    usable: whether enough of its responses have a score, once it is complete; if not, it takes its place in a batch masked.
    lengths: tokens of each of its responses so far.
    kept: with a tail, the most tokens of a response that are kept of what was sealed last; None: all.
    """

    ref: PromptRef
    iteration: int
    sealed: ShardPlace | None = None
    completed: tuple[int, int, int] | None = None
    usable: bool = True
    lengths: tuple[int, ...] = ()
    kept: int | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts complete groups by when they are learnt from."""
        assert self.completed is not None, "only complete groups are learnt from"
        return (*self.completed, self.ref.ordinal)

    def anew(self, iteration: int) -> StartedGroup:
        """Returns the group with nothing drawn, as it is started again in an iteration."""
        return StartedGroup(self.ref, iteration)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the ledger."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        return cls(
            ref=PromptRef(**value["ref"]),
            iteration=value["iteration"],
            sealed=None if value["sealed"] is None else ShardPlace(**value["sealed"]),
            completed=None if value["completed"] is None else _triple(value["completed"]),
            usable=value["usable"],
            lengths=tuple(value.get("lengths", ())),
            kept=value.get("kept"),
        )


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    first, second, third = values
    return first, second, third


@dataclass(frozen=True, slots=True)
class SliceRule:
    """The slices, or the tail, of a spec.

    prompts: groups that an iteration learns from.
    tokens: the most new tokens that a response gets in a round.
    most: iterations in which a response may draw.
    in_flight: groups that are started and not learnt from.
    shards: logical shards of a round, at most.
    iterations: of the whole run; no group is started that none of them would learn from.
    least_scored: responses with a score that a group needs to be learnt from.
    span: iterations between a group's start and the one that learns from it, at most.
    cuts: whether an iteration ends at the token at which enough groups are complete, wherever that is within a round.
    """

    prompts: int
    tokens: int
    most: int
    in_flight: int
    shards: int
    iterations: int
    span: int
    least_scored: int = 1
    cuts: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> Self | None:
        """Returns the rule of a run's spec; None if responses are drawn whole."""
        tail = spec.tail
        tokens = spec.rollout.slice_tokens if tail is None else tail.step_tokens
        if tokens is None:
            return None
        return cls(
            prompts=spec.data.prompts_per_iteration,
            tokens=tokens,
            most=spec.drawing_iterations,
            in_flight=spec.groups_in_flight,
            shards=spec.data.logical_shards,
            iterations=spec.iterations,
            span=spec.carry_span,
            least_scored=SamplingRule.of(spec).least_scored,
            cuts=tail is not None,
        )

    def room(self, iteration: int) -> int:
        """Returns how many groups may be in flight in an iteration: the last iterations start what they can learn from."""
        return min(self.in_flight, (self.iterations - iteration + 1) * self.prompts)


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A round before it starts.

    number: its number within the iteration.
    groups: the groups that draw, in the order of starting.
    tokens: the most new tokens of each group's responses; None: as many as end them.
    new: how many of the groups are new.
    """

    number: int
    groups: tuple[StartedGroup, ...]
    tokens: tuple[int | None, ...]
    new: int

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the ledger."""
        return {
            "number": self.number,
            "groups": [group.to_json() for group in self.groups],
            "tokens": list(self.tokens),
            "new": self.new,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        groups = tuple(StartedGroup.from_json(group) for group in value["groups"])
        return cls(value["number"], groups, tuple(value["tokens"]), value["new"])


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """A group after a round.

    sealed: where it was sealed.
    completed: the most new tokens of one of its responses if all have ended; 0 otherwise.
    usable: whether enough of its responses have a score, if it is complete.
    lengths: tokens of each of its responses so far.
    """

    sealed: ShardPlace
    completed: int
    usable: bool = True
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What a round has led to.

    drawn: by prompt ordinal.
    learnt: the groups that the iteration learns from, in the order of learning; None if another round follows.
    thrown: ordinals of the prompts whose groups completed behind the iteration's end, and go on again.
    """

    drawn: Mapping[int, DrawnGroup]
    learnt: tuple[StartedGroup, ...] | None
    thrown: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the ledger."""
        return {
            "drawn": [{"ordinal": ordinal, **asdict(group)} for ordinal, group in sorted(self.drawn.items())],
            "learnt": None if self.learnt is None else [group.to_json() for group in self.learnt],
            "thrown": list(self.thrown),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads what `to_json` wrote."""
        drawn = {
            one["ordinal"]: DrawnGroup(
                sealed=ShardPlace(**one["sealed"]),
                completed=one["completed"],
                usable=one["usable"],
                lengths=tuple(one.get("lengths", ())),
            )
            for one in value["drawn"]
        }
        learnt = value["learnt"]
        return cls(
            drawn=drawn,
            learnt=None if learnt is None else tuple(StartedGroup.from_json(group) for group in learnt),
            thrown=tuple(value.get("thrown", ())),
        )


@dataclass(frozen=True, slots=True)
class Slicing:
    """An iteration's rounds so far.

    carried: the groups in flight, in the order of starting; after the last round, those that stay so.
    outcomes: of the settled rounds.
    """

    rule: SliceRule
    iteration: int
    carried: tuple[StartedGroup, ...]
    outcomes: tuple[RoundOutcome, ...] = ()

    @property
    def finished(self) -> bool:
        """True if no further round follows."""
        return bool(self.outcomes) and self.outcomes[-1].learnt is not None

    @property
    def learnt(self) -> tuple[StartedGroup, ...]:
        """The groups that the iteration learns from; valid once it is finished."""
        learnt = self.outcomes[-1].learnt
        assert learnt is not None, "the iteration's last round is settled"
        return learnt

    @property
    def complete(self) -> tuple[StartedGroup, ...]:
        """The complete groups in flight, in the order of learning."""
        return tuple(sorted((one for one in self.carried if one.completed is not None), key=lambda one: one.order))

    @property
    def wanted(self) -> int:
        """The number of prompts that the next round starts."""
        if self._draws_nothing:
            return 0
        return max(0, self.rule.room(self.iteration) - len(self.carried))

    def plan(self, new: Iterable[PromptRef]) -> RoundPlan:
        """Returns the next round. new: as many prompts as are wanted, the next ones of the stream."""
        started = [StartedGroup(ref, self.iteration) for ref in new]
        unfinished = [] if self._draws_nothing else [one for one in self.carried if one.completed is None]
        drawing = (*unfinished, *started)
        return RoundPlan(
            number=len(self.outcomes),
            groups=drawing,
            tokens=tuple(self._most(one) for one in drawing),
            new=len(started),
        )

    @property
    def _draws_nothing(self) -> bool:
        """True if the iteration ends at its first token, since what is complete already is enough."""
        return self.rule.cuts and self._is_enough

    @property
    def _is_enough(self) -> bool:
        """True if enough groups are complete, and all that may draw in no later iteration."""
        awaited = any(one.completed is None and self._is_last(one) for one in self.carried)
        return len(self.complete) >= self.rule.prompts and not awaited

    def _is_last(self, group: StartedGroup) -> bool:
        """Returns True if the iteration is the last one in which a group may draw."""
        return self.iteration - group.iteration + 1 >= self.rule.most

    def _most(self, group: StartedGroup) -> int | None:
        to_the_end = self._is_last(group) and not self.rule.cuts
        return None if to_the_end else self.rule.tokens

    def settle(self, plan: RoundPlan, drawn: Mapping[int, DrawnGroup]) -> RoundOutcome:
        """Decides whether the iteration has enough groups to learn from, and from which it learns.

        drawn: by ordinal, of every group of the plan.

        Raises `InfrastructureError` if a group's tokens would be older than the rule allows.
        """
        after = self._drawn(plan, drawn)
        if not after._is_enough:
            return RoundOutcome(drawn, None)
        learnt = after.complete[: self.rule.prompts]
        require_fresh(learnt, self.iteration, self.rule.span)
        going = {one.ref.ordinal for one in after._cut(plan).carried if one.completed is None}
        thrown = tuple(one.ref.ordinal for one in after.complete if one.ref.ordinal in going)
        return RoundOutcome(drawn, learnt, tuple(sorted(thrown)))

    def after(self, plan: RoundPlan, outcome: RoundOutcome) -> Slicing:
        """Returns the state with one more settled round."""
        after = self._drawn(plan, outcome.drawn)
        if outcome.learnt is not None:
            after = after._cut(plan)
        gone = {one.ref.ordinal for one in outcome.learnt or ()}
        return replace(
            after,
            carried=tuple(one for one in after.carried if one.ref.ordinal not in gone),
            outcomes=(*self.outcomes, outcome),
        )

    def _drawn(self, plan: RoundPlan, drawn: Mapping[int, DrawnGroup]) -> Slicing:
        """Returns the state in which the groups of a round have drawn."""
        moved: dict[int, StartedGroup] = {}
        for group in plan.groups:
            found = drawn[group.ref.ordinal]
            completed = self._completed_at(plan.number, found.completed) if found.completed else None
            moved[group.ref.ordinal] = replace(
                group,
                sealed=found.sealed,
                completed=completed,
                usable=completed is None or found.usable,
                lengths=found.lengths,
                kept=(group.kept or 0) + self.rule.tokens if self.rule.cuts else None,
            )
        before = {one.ref.ordinal: one for one in self.carried}
        carried = tuple(group for _, group in sorted((before | moved).items()))
        return replace(self, carried=carried)

    def _completed_at(self, number: int, tokens: int) -> tuple[int, int, int]:
        """Returns when a group completed. With a tail, tokens count from the iteration's beginning: rounds do not matter."""
        if self.rule.cuts:
            return self.iteration, 0, number * self.rule.tokens + tokens
        return self.iteration, number, tokens

    def _cut(self, plan: RoundPlan) -> Slicing:
        """Returns the state in which what its last round drew behind the iteration's end is thrown away, with a tail."""
        if not self.rule.cuts:
            return self
        behind = (plan.number + 1) * self.rule.tokens - self.end
        drew = {group.ref.ordinal for group in plan.groups}
        carried = tuple(self._until_the_end(one, behind) if one.ref.ordinal in drew else one for one in self.carried)
        return replace(self, carried=carried)

    @property
    def end(self) -> int:
        """The token at which the iteration ends, with a tail, once enough groups are complete."""
        awaited = (*self.complete[: self.rule.prompts], *(one for one in self.complete if self._is_last(one)))
        return max((one.order[2] for one in awaited if one.order[0] == self.iteration), default=0)

    def _until_the_end(self, group: StartedGroup, behind: int) -> StartedGroup:
        """Returns a group without what it drew behind the iteration's end. behind: tokens of the round behind it."""
        if group.completed is not None and group.order[2] <= self.end:
            return group
        assert group.kept is not None, "what draws with a tail is cut at a token"
        kept = group.kept - behind
        return replace(
            group, completed=None, usable=True, lengths=tuple(min(each, kept) for each in group.lengths), kept=kept
        )


def require_fresh(learnt: Iterable[StartedGroup], iteration: int, bound: int) -> None:
    """Raises `InfrastructureError` if a group that is to be learnt from was started too long ago.

    bound: iterations between a group's start and the iteration that learns from it, at most.
    """
    for group in learnt:
        if iteration - group.iteration > bound:
            raise InfrastructureError(
                f"iteration {iteration} would learn from prompt {group.ref.ordinal}, started in iteration {group.iteration}; "
                f"slices allow {bound} iterations in between"
            )


def admission_of_groups(learnt: Iterable[StartedGroup]) -> Admission:
    """Returns the groups that an update learns from; those without enough scores are padding."""
    ordered = sorted(learnt, key=lambda group: group.ref.ordinal)
    return Admission(
        groups=tuple(group.ref.ordinal for group in ordered if group.usable),
        padding=tuple(group.ref.ordinal for group in ordered if not group.usable),
    )


def wave_plan_of(drawing: RoundPlan, slicing: Slicing) -> WavePlan:
    """Returns a round as the ledger's waves name it: `prompts` are those that it draws from the stream."""
    return WavePlan(
        wave=drawing.number,
        wanted=len(drawing.groups),
        prompts=drawing.new,
        shards=min(slicing.rule.shards, len(drawing.groups)),
        gap=slicing.rule.prompts - len(slicing.complete),
        average=FIRST_AVERAGE,
    )


def wave_outcome_of(outcome: RoundOutcome, shards: int) -> WaveOutcome:
    """Returns a round's outcome as the ledger's waves name it: what the iteration learns from is admitted by its last wave."""
    return WaveOutcome(
        groups=len(outcome.drawn),
        cut=0,
        shards=shards,
        valid=sum(one.completed > 0 and one.usable for one in outcome.drawn.values()),
        admitted=admission_of_groups(outcome.learnt or ()).groups,
        dropped=0,
        spare=(),
        wasted_tokens=0,
        average=FIRST_AVERAGE,
        padding=None if outcome.learnt is None else admission_of_groups(outcome.learnt).padding,
        keep=None,
    )


def slicing_metrics(slicing: Slicing) -> dict[str, float]:
    """Returns an iteration's rounds and groups by metric name (all of class result); slicing is finished."""
    found = {
        "slices/rounds": float(len(slicing.outcomes)),
        "slices/in_flight": float(len(slicing.carried)),
        "slices/waiting": float(len(slicing.complete)),
        "slices/masked_groups": float(sum(not group.usable for group in slicing.learnt)),
    }
    if slicing.rule.cuts:
        found["tail/thrown_away_tokens"] = float(thrown_away(slicing))
    return found


def thrown_away(slicing: Slicing) -> int:
    """Returns the tokens that the last round of a finished iteration drew behind its end."""
    kept = {group.ref.ordinal: sum(group.lengths) for group in slicing.carried}
    drawn = slicing.outcomes[-1].drawn
    return sum(sum(one.lengths) - kept[ordinal] for ordinal, one in drawn.items() if ordinal in kept)


@dataclass(frozen=True, slots=True)
class LearntLengths:
    """The responses that a run has learnt from so far: how many, and their tokens."""

    responses: int = 0
    tokens: int = 0

    def after(self, learnt: Iterable[StartedGroup]) -> LearntLengths:
        """Returns the lengths with those of the groups that one more iteration learns from."""
        lengths = [each for group in learnt for each in group.lengths]
        return LearntLengths(self.responses + len(lengths), self.tokens + sum(lengths))

    def bias(self, carried: Iterable[StartedGroup]) -> float:
        """Returns the mean length of what was learnt from, over the mean length of all that was begun.

        carried: the groups in flight, whose responses count with what they have.
        """
        begun = self.after(carried)
        return self.tokens * begun.responses / (begun.tokens * self.responses)
