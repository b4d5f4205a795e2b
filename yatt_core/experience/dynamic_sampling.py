"""Dynamic sampling: how many prompts each wave draws and which groups are admitted. A pure state machine without I/O.

Consumes a rule, the sampling average and, after each wave, the metadata of its groups, no matter which
controllers produced them or in which order they arrived; everything is settled in prompt order. Produces plans
and outcomes, which the driver records before they take effect: the state is computed from recorded outcomes alone,
so that recovery continues where the last driver stopped.

With g groups missing, a wave draws ceil(g x average x overdraw) prompts. After the wave, with r = min(groups /
valid groups, cap), or r = cap if no group is valid: average <- decay x average + (1 - decay) x r. The average
starts at 1 and is carried over between iterations. Without a filter the only reason for a further wave is that samples have
no score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from yatt_core.errors import DataError
from yatt_core.protocols.receipts import LEAST_COMPARED, Admission, GroupFacts
from yatt_core.round_off import are_distinct
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.dynamic_sampling import AllGroups, BestAndWorst

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
FIRST_AVERAGE = 1.0


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """The sampling settings of a spec.

    target: the number of groups in an update.
    filters: whether only valid groups are admitted.
    keep: as in `Admission`.
    samples: the number of responses to a prompt.
    least_scored: the number of responses with a score that a group needs to be learnt from.
    refill_above: fraction of the responses that may lack a score without further prompts; None: any.
    """

    target: int
    shards: int
    samples: int = 1
    least_scored: int = 1
    refill_above: float | None = None
    filters: bool = False
    max_waves: int = 1
    ratio_cap: float = 1.0
    overdraw: float = 1.0
    decay: float = 0.0
    overdispatch: float = 1.0
    keep: int | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> Self:
        """Returns the rule of a run's spec."""
        wanted = spec.dynamic_sampling
        compared = LEAST_COMPARED if spec.algorithm.advantage.compares else 1
        kept = 2 * wanted.keep if isinstance(wanted, BestAndWorst) else 0
        rule = cls(
            target=spec.data.prompts_per_iteration,
            shards=spec.data.logical_shards,
            samples=spec.rollout.samples_per_prompt,
            least_scored=max(min(compared, spec.rollout.samples_per_prompt), kept),
            overdispatch=1.0 if wanted.overdispatch is None else wanted.overdispatch.factor,
        )
        if isinstance(wanted, AllGroups):
            if (refill := wanted.refill) is None:
                return rule
            return replace(rule, max_waves=refill.max_waves, refill_above=refill.above)
        return replace(
            rule,
            filters=True,
            max_waves=wanted.max_waves,
            ratio_cap=wanted.ratio_cap,
            overdraw=wanted.overdraw,
            decay=wanted.decay,
            keep=wanted.keep if isinstance(wanted, BestAndWorst) else None,
        )


@dataclass(frozen=True, slots=True)
class WavePlan:
    """A wave before it starts.

    wanted: the number of groups that the wave needs.
    prompts: the number of prompts drawn; those beyond `wanted` are over-dispatched.
    shards: the number of logical shards into which its prompts are divided.
    gap: the number of groups that the iteration still has to find.
    average: prompts per valid group.
    """

    wave: int
    wanted: int
    prompts: int
    shards: int
    gap: int
    average: float


@dataclass(frozen=True, slots=True)
class WaveGroups:
    """Metadata of a wave's G groups in prompt order, each [G].

    valid: whether a group's largest reward is greater than its smallest, by more than rounding.
    scored: the number of its responses that have a score; None if all have one.
    """

    ordinals: Int64
    valid: Bool
    tokens: Int64
    scored: Int64 | None = None

    @classmethod
    def gather(cls, shards: Iterable[tuple[Sequence[int], GroupFacts]]) -> Self:
        """Collects the metadata from the shards' prompt ordinals and facts, which may be in any order.

        Raises `DataError` if a shard's facts do not match its prompts.
        """
        parts = list(shards)
        for prompts, facts in parts:
            if not len(prompts) == len(facts.reward_min) == len(facts.reward_max) == len(facts.tokens):
                raise DataError(f"a shard of {len(prompts)} prompts has facts of {len(facts.tokens)} groups")
        ordinals = np.fromiter(chain.from_iterable(prompts for prompts, _ in parts), np.int64)
        lowest = np.fromiter(chain.from_iterable(facts.reward_min for _, facts in parts), np.float64)
        highest = np.fromiter(chain.from_iterable(facts.reward_max for _, facts in parts), np.float64)
        tokens = np.fromiter(chain.from_iterable(facts.tokens for _, facts in parts), np.int64)
        scored = np.fromiter(chain.from_iterable(facts.scored for _, facts in parts), np.int64)
        if len(scored) not in (0, len(ordinals)):
            raise DataError(f"{len(ordinals)} groups have facts about the scores of {len(scored)}")
        order = np.argsort(ordinals, kind="stable")
        return cls(
            ordinals=ordinals[order],
            valid=are_distinct(lowest, highest)[order],
            tokens=tokens[order],
            scored=scored[order] if len(scored) else None,
        )

    def with_scores(self, chosen: Int64, samples: int) -> int:
        """Returns how many responses of the chosen groups, given by index, have a score. samples: of a prompt."""
        return len(chosen) * samples if self.scored is None else int(self.scored[chosen].sum())

    def usable(self, rule: SamplingRule) -> Bool:
        """Returns which groups may be learnt from, [G]."""
        wanted = self.valid if rule.filters else np.ones(len(self.ordinals), dtype=np.bool_)
        return wanted if self.scored is None else wanted & (self.scored >= rule.least_scored)


@dataclass(frozen=True, slots=True)
class WaveOutcome:
    """The outcome of a wave; groups are given by prompt ordinal, ascending.

    groups: the number of finished groups.
    cut: the number of prompts that were not waited for.
    shards: the number of finished shards.
    admitted: groups used for learning.
    dropped: the number of valid groups beyond the admitted ones.
    spare: groups that may serve as padding.
    wasted_tokens: tokens of responses that are not used for learning.
    average: prompts per valid group, averaged up to this wave.
    padding: the padding of the whole iteration, set after its last wave; None before.
    keep: as in `Admission`.
    scored: the number of responses in the admitted groups that have a score; None in rows of older versions, where it did not
        matter.
    """

    groups: int
    cut: int
    shards: int
    valid: int
    admitted: tuple[int, ...]
    dropped: int
    spare: tuple[int, ...]
    wasted_tokens: int
    average: float
    padding: tuple[int, ...] | None
    keep: int | None
    scored: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome as plain values for the ledger."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Reads an outcome that `to_json` wrote; ignores what the ledger keeps beside it."""
        known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
        lists = {name: tuple(value[name]) for name in ("admitted", "spare")}
        padding = None if value["padding"] is None else tuple(value["padding"])
        return cls(**{**known, **lists, "padding": padding})


@dataclass(frozen=True, slots=True)
class Sampling:
    """An iteration's dynamic sampling so far.

    average: prompts per valid group, averaged before the first wave.
    outcomes: the outcomes of the settled waves.
    """

    rule: SamplingRule
    average: float = FIRST_AVERAGE
    outcomes: tuple[WaveOutcome, ...] = ()

    @property
    def lacking(self) -> int:
        """The number of groups that the update still lacks."""
        return max(0, self.rule.target - sum(len(outcome.admitted) for outcome in self.outcomes))

    @property
    def gap(self) -> int:
        """The number of groups that the next wave has to find; 0 if none has to follow.

        If samples without a score are replaced, what counts is the number of samples: further groups then make up for them,
        and for groups that were dropped, once too many samples are missing.
        """
        if self.rule.refill_above is None or not self.outcomes:
            return self.lacking
        wanted = self.rule.target * self.rule.samples
        missing = wanted - sum(outcome.scored or 0 for outcome in self.outcomes)
        return math.ceil(missing / self.rule.samples) if missing > self.rule.refill_above * wanted else 0

    @property
    def average_now(self) -> float:
        """Prompts per valid group after the last settled wave."""
        return self.outcomes[-1].average if self.outcomes else self.average

    @property
    def finished(self) -> bool:
        """True if there is no further wave."""
        return bool(self.outcomes) and self.outcomes[-1].padding is not None

    def plan(self) -> WavePlan:
        """Returns the plan of the next wave; valid only while sampling is not finished."""
        wanted = math.ceil(self.gap * self.average_now * self.rule.overdraw) if self.rule.filters else self.gap
        prompts = math.ceil(wanted * self.rule.overdispatch)
        shards = min(self.rule.shards, prompts)
        return WavePlan(
            wave=len(self.outcomes),
            wanted=wanted,
            prompts=prompts,
            shards=shards,
            gap=self.gap,
            average=self.average_now,
        )

    def settle(self, plan: WavePlan, groups: WaveGroups, shards: int, ends: bool = False) -> WaveOutcome:
        """Admits usable groups in prompt order up to the gap.

        After the last wave, groups that were not admitted take the place of those that are lacking as padding, in prompt
        order over all waves.

        shards: the number of finished shards.
        ends: whether no further wave may follow, because the iteration's time is over.
        """
        valid = groups.usable(self.rule)
        chosen = np.flatnonzero(valid)[: self.gap]
        left = np.ones(len(valid), dtype=np.bool_)
        left[chosen] = False
        lacking = max(0, self.lacking - len(chosen))
        count = int(np.count_nonzero(valid))
        spare = tuple(groups.ordinals[left][:lacking].tolist())
        spares = [ordinal for outcome in self.outcomes for ordinal in outcome.spare] + list(spare)
        outcome = WaveOutcome(
            groups=len(valid),
            cut=plan.prompts - len(valid),
            shards=shards,
            valid=count,
            admitted=tuple(groups.ordinals[chosen].tolist()),
            dropped=count - len(chosen),
            spare=spare,
            wasted_tokens=int(groups.tokens[left].sum()),
            average=self._moved(len(valid), count),
            padding=None,
            keep=self.rule.keep,
            scored=groups.with_scores(chosen, self.rule.samples),
        )
        last = ends or self.after(outcome).gap == 0 or plan.wave + 1 >= self.rule.max_waves
        return replace(outcome, padding=tuple(spares[:lacking])) if last else outcome

    def after(self, outcome: WaveOutcome) -> Sampling:
        """Returns the state with the outcome of one more settled wave."""
        return replace(self, outcomes=(*self.outcomes, outcome))

    def _moved(self, groups: int, valid: int) -> float:
        if not self.rule.filters:
            return self.average_now
        ratio = min(groups / valid, self.rule.ratio_cap) if valid else self.rule.ratio_cap
        return self.rule.decay * self.average_now + (1.0 - self.rule.decay) * ratio


def admission_of(outcomes: Sequence[WaveOutcome]) -> Admission:
    """Returns the groups used for learning in an iteration whose waves are all settled."""
    admitted = tuple(ordinal for outcome in outcomes for ordinal in outcome.admitted)
    return Admission(admitted, outcomes[-1].padding or (), outcomes[-1].keep)


def shortfall(sampling: Sampling) -> str:
    """Returns a description of the groups that a finished sampling lacks; empty if none are missing."""
    if not (missing := sampling.lacking):
        return ""
    groups = sum(outcome.groups for outcome in sampling.outcomes)
    waves = len(sampling.outcomes)
    return (
        f"only {sampling.rule.target - missing} of {sampling.rule.target} groups can be learnt from after {waves} waves of "
        f"{groups} prompts in total; {missing} masked groups fill the batch"
    )


def sampling_metrics(sampling: Sampling) -> dict[str, float]:
    """Returns how many groups a finished sampling drew, admitted and wasted, by metric name (all of class result)."""
    outcomes = sampling.outcomes
    groups = sum(outcome.groups for outcome in outcomes)
    valid = sum(outcome.valid for outcome in outcomes)
    return {
        "sampling/waves": float(len(outcomes)),
        "sampling/drawn_groups": float(groups + sum(outcome.cut for outcome in outcomes)),
        "sampling/valid_fraction": valid / groups,
        "sampling/filled_fraction": 1.0 - sampling.lacking / sampling.rule.target,
        "sampling/dropped_groups": float(sum(outcome.dropped for outcome in outcomes)),
        "sampling/invalid_groups": float(groups - valid),
        "sampling/cut_groups": float(sum(outcome.cut for outcome in outcomes)),
        "sampling/padded_groups": float(sampling.lacking),
        "sampling/wasted_tokens": float(sum(outcome.wasted_tokens for outcome in outcomes)),
        "sampling/prompts_per_valid_group": sampling.average_now,
    }
