"""What is watched while a run goes on, and what is done when it looks wrong.

Every guard is on with defaults that a healthy run does not come near; `null` switches one off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.metric_names import is_known, is_timing, nearest_metric

Action = Literal["alert", "pause", "rollback", "stop"]
TimedAction = Literal["alert", "pause", "stop"]
"""What follows the clock leads to no rollback: another run of the same spec would not make it."""
LONGEST_WINDOW = 1000
EARLIEST_FALL = 50
"""Values before its window that the guard of the entropy waits for."""


class MetricGuard(SpecModel):
    """Judges the mean of a metric's newest values. It raises an alarm where one of the given bounds is broken.

    Behind an alarm the window begins anew, so that the next one tells of other values.
    """

    action: Action = "alert"
    """`alert`: say it. `pause`: end with a checkpoint and wait for a person. `rollback`: go back to before the window and draw
    other prompts. `stop`: end with a checkpoint."""
    window: PositiveInt = Field(default=5, le=LONGEST_WINDOW)
    """Newest values whose mean is judged, once there are so many."""
    at_most: float | None = None
    """Largest mean that is no alarm."""
    at_least: float | None = None
    """Smallest mean that is no alarm."""
    rise: float | None = Field(default=None, gt=1.0)
    """Most times the median of the values before the window that the mean may be."""
    fall: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Least share of the median of the values before the window that the mean may be."""
    baseline: PositiveInt = Field(default=20, le=LONGEST_WINDOW)
    """How many values before the window `rise` and `fall` compare with; they judge once there are so many."""

    @property
    def least_baseline(self) -> int:
        """How many values before the window have to be there for `rise` and `fall` to judge."""
        return self.baseline

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        bounds = (self.at_most, self.at_least, self.rise, self.fall)
        if all(bound is None for bound in bounds):
            raise ValueError(
                "one of at_most, at_least, rise and fall is needed; `null` in its place switches a guard off"
            )
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise ValueError(
                f"at_least {self.at_least:g} is more than at_most {self.at_most:g}: no value is between them"
            )
        return self


class KlGuard(MetricGuard):
    """Of `kl`, which runs with a pull towards the reference have: the policy has gone far from it."""

    at_most: float | None = 0.5
    """Largest mean that is no alarm, nats a token."""


class EntropyGuard(MetricGuard):
    """Of `entropy`: it collapses, and with it the differences between answers that are learnt from."""

    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Newest values whose mean is judged, once there are so many."""
    fall: float | None = Field(default=0.2, gt=0.0, lt=1.0)
    """Least share of the median of the values before the window that the mean may be."""
    baseline: PositiveInt = Field(default=500, le=LONGEST_WINDOW)
    """How many values before the window `fall` compares with at most. It judges once there are 50: a slow collapse takes longer
    than that, a fast one does not wait."""

    @property
    def least_baseline(self) -> int:
        """Fewer than are compared with: what collapses fast is not to wait for them."""
        return min(self.baseline, EARLIEST_FALL)


class LogProbGapGuard(MetricGuard):
    """Of `train_rollout_logprob_diff_mean`: sampler and trainer disagree about the same tokens under the same weights."""

    at_most: float | None = 0.1
    """Largest mean that is no alarm, nats a token."""


class GradientNormGuard(MetricGuard):
    """Of `grad_norm`, before clipping: an update is pulled much harder than those before it."""

    window: PositiveInt = Field(default=3, le=LONGEST_WINDOW)
    """Newest values whose mean is judged, once there are so many."""
    rise: float | None = Field(default=10.0, gt=1.0)
    """Most times the median of the values before the window that the mean may be."""


class TruncationGuard(MetricGuard):
    """Of `truncated_fraction`: answers are cut before they end."""

    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Newest values whose mean is judged, once there are so many."""
    at_most: float | None = Field(default=0.5)
    """Largest mean that is no alarm."""


class ThroughputGuard(MetricGuard):
    """Of `tokens_per_second`: the run has become slow."""

    action: TimedAction = "alert"
    """As of `kl`; slowness is not rolled back, since that would make the result follow the clock."""
    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Newest values whose mean is judged, once there are so many."""
    fall: float | None = Field(default=0.3, gt=0.0, lt=1.0)
    """Least share of the median of the values before the window that the mean may be."""


class CustomGuard(MetricGuard):
    """A guard of your own, of any metric."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """What its alarms are called."""
    metric: str
    """The metric, as docs/formats.md names it. One that the run does not have is never judged."""


class RewardLengthGuard(SpecModel):
    """Responses grow, and what they are for does not: the reward has not risen, or it has and fewer answers are right."""

    action: Action = "alert"
    """As of `kl`."""
    window: PositiveInt = Field(default=20, le=LONGEST_WINDOW)
    """Two windows of so many iterations, one right behind the other, are compared by their means."""
    growth: float = Field(default=1.5, gt=1.0)
    """How many times as long responses have to be for an alarm."""
    gain: NonNegativeFloat = 0.0
    """The reward has to have risen by more than this."""


class NonFiniteGuard(SpecModel):
    """Of updates that were skipped because a loss or gradient was not finite; `recovery.on_non_finite` answers a single one."""

    action: Action = "alert"
    """As of `kl`. Where `recovery.on_non_finite` is no skip, the alarm tells of that answer instead."""
    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Newest iterations that count, once there is one."""
    at_most: NonNegativeInt = 0
    """Most skipped updates among them that are no alarm."""


class StalledPhaseGuard(SpecModel):
    """Of a phase under way: it takes much longer than it did before. Its deadline, at which it fails, follows its last twenty."""

    action: TimedAction = "alert"
    """As of `kl`. `pause` and `stop` leave a phase in the middle where it can be left; else they wait for its end or deadline."""
    share: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of its deadline from which on a phase counts as stalled."""


class BudgetGuard(SpecModel):
    """What the run may use up, over all of its sessions and branches; looked at behind each iteration."""

    action: TimedAction = "pause"
    """As of `kl`. A run whose budget is used up is not driven further before the budget is raised."""
    device_hours: PositiveFloat | None = None
    """Hours of being driven, times the devices: rollout instances or trainer ranks, whichever is more. `null`: no limit."""
    wall_hours: PositiveFloat | None = None
    """Hours of being driven. `null`: no limit."""

    @property
    def is_limited(self) -> bool:
        """True with a limit."""
        return self.device_hours is not None or self.wall_hours is not None


class NotifySpec(SpecModel):
    """Where alarms, and the news that the run was paused or has failed, are sent to."""

    environment: str = Field(default="YATT_NOTIFY", pattern=r"^[A-Z][A-Z0-9_]*$")
    """Name of the environment variable that holds the addresses, as Apprise writes them, with blanks between them. The addresses
    are secrets and belong nowhere else."""
    interval_seconds: NonNegativeFloat = 60.0
    """Least time between two messages; what comes up in between goes into the next one. The end of a session does not wait."""


class GuardsSpec(SpecModel):
    """What is watched, and what is done about it."""

    kl: KlGuard | None = KlGuard()
    entropy: EntropyGuard | None = EntropyGuard()
    reward_against_length: RewardLengthGuard | None = RewardLengthGuard()
    train_rollout_logprob_diff: LogProbGapGuard | None = LogProbGapGuard()
    gradient_norm: GradientNormGuard | None = GradientNormGuard()
    non_finite: NonFiniteGuard | None = NonFiniteGuard()
    truncation: TruncationGuard | None = TruncationGuard()
    throughput: ThroughputGuard | None = ThroughputGuard()
    stalled_phase: StalledPhaseGuard | None = StalledPhaseGuard()
    custom: tuple[CustomGuard, ...] = ()
    """Guards of other metrics, or of the same ones with other bounds."""
    budget: BudgetGuard = BudgetGuard()
    rollback_limit: PositiveInt = 3
    """Rollbacks by guards to the same iteration, behind which the run pauses."""
    notify: NotifySpec | None = None
    """`null`: nobody is told; alarms stand in the ledger all the same."""

    def mistakes(self) -> Iterator[str]:
        """What cannot be meant, a line each that begins with the key to change."""
        taken = set(type(self).model_fields)
        for number, guard in enumerate(self.custom):
            place = f"guards.custom.{number}"
            if guard.name in taken:
                yield f"{place}.name: {guard.name!r} is the name of another guard; choose another"
            taken.add(guard.name)
            if not is_known(guard.metric):
                yield f"{place}.metric: there is no metric {guard.metric!r}; {nearest_metric(guard.metric)}"
            elif is_timing(guard.metric) and guard.action == "rollback":
                yield (
                    f"{place}.action: {guard.metric} follows the clock, and a result must not; right would be alert, pause or "
                    "stop"
                )
