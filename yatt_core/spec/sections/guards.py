"""The guards of a run: what they watch, and what they do when something looks wrong.

Every guard is enabled, with defaults well outside the range of a healthy run; `null` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from yatt_core.naming import Names
from yatt_core.secret_references import SecretReference
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.metric_names import is_known, is_timing, nearest_metric

Action = Literal["alert", "pause", "rollback", "stop"]
TimedAction = Literal["alert", "pause", "stop"]
"""Actions that may depend on timing. Rollback is excluded: another run of the same spec would not perform it."""
LONGEST_WINDOW = 1000
EARLIEST_FALL = 50
"""Number of values before its window that the entropy guard waits for."""


class MetricGuard(SpecModel):
    """Watches the mean of a metric's most recent values and raises an alarm if a configured bound is violated.

    After an alarm the window starts over, so that the next alarm is about new values.
    """

    action: Action = "alert"
    """`alert`: only report the alarm. `pause`: end with a checkpoint and wait for a user. `rollback`: go back to
    before the window and draw other prompts. `stop`: end with a checkpoint."""
    window: PositiveInt = Field(default=5, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    at_most: float | None = None
    """Maximum mean that raises no alarm."""
    at_least: float | None = None
    """Minimum mean that raises no alarm."""
    rise: float | None = Field(default=None, gt=1.0)
    """Maximum mean that raises no alarm, as a multiple of the median of the values before the window."""
    fall: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Minimum mean that raises no alarm, as a fraction of the median of the values before the window."""
    baseline: PositiveInt = Field(default=20, le=LONGEST_WINDOW)
    """Number of values before the window that `rise` and `fall` compare with; they take effect as soon as that
    many exist."""

    @property
    def least_baseline(self) -> int:
        """Number of values before the window that `rise` and `fall` need to take effect."""
        return self.baseline

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        bounds = (self.at_most, self.at_least, self.rise, self.fall)
        if all(bound is None for bound in bounds):
            raise ValueError(
                "expected at least one of at_most, at_least, rise and fall; to disable the guard, set it to `null`"
            )
        if self.at_most is not None and self.at_least is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least:g} is greater than at_most {self.at_most:g}")
        return self


class KlGuard(MetricGuard):
    """Watches `kl`, which only runs with a KL penalty have, for a policy that has drifted far from the reference."""

    at_most: float | None = 0.5
    """Maximum mean that raises no alarm, in nats per token."""


class EntropyGuard(MetricGuard):
    """Watches `entropy`: it collapses, and with it the diversity of the responses to learn from."""

    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    fall: float | None = Field(default=0.2, gt=0.0, lt=1.0)
    """Minimum mean that raises no alarm, as a fraction of the median of the values before the window."""
    baseline: PositiveInt = Field(default=500, le=LONGEST_WINDOW)
    """Maximum number of values before the window that `fall` compares with. It takes effect as soon as 50 exist,
    so that a fast collapse is noticed early; a slow collapse needs the longer baseline."""

    @property
    def least_baseline(self) -> int:
        """Fewer values than `baseline`, so that a fast collapse is noticed early."""
        return min(self.baseline, EARLIEST_FALL)


class LogProbGapGuard(MetricGuard):
    """Watches `train_rollout_logprob_diff_mean`: sampler and trainer disagree on the same tokens and weights."""

    at_most: float | None = 0.1
    """Maximum mean that raises no alarm, in nats per token. Nucleus sampling adds -log(`rollout.top_p`). With
    `rollout.top_k`, `min_p`, `repetition_penalty` or `min_new_tokens` the default of this bound is ignored and `rise`
    (default 3) applies; any other value of this bound applies as well. Neither holds if `algorithm.sampler_support` is
    `replay`."""


class GradientNormGuard(MetricGuard):
    """Watches `grad_norm` before clipping: an update has much larger gradients than the previous ones."""

    window: PositiveInt = Field(default=3, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    rise: float | None = Field(default=10.0, gt=1.0)
    """Maximum mean that raises no alarm, as a multiple of the median of the values before the window."""


class TruncationGuard(MetricGuard):
    """Watches `truncated_fraction`: responses are cut off before they end."""

    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    at_most: float | None = Field(default=0.5)
    """Maximum mean that raises no alarm."""


class UnscoredGuard(MetricGuard):
    """Watches `unscored_fraction`: reward parts fail, and nothing is learnt from the samples that they leave without a score."""

    at_most: float | None = Field(default=0.05)
    """Maximum mean that raises no alarm."""


class MostlyUnscoredGuard(MetricGuard):
    """Watches `unscored_fraction` like `unscored`, for so many that what is left may be no fair sample."""

    action: Action = "pause"
    """As described for `kl`."""
    window: PositiveInt = Field(default=2, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    at_most: float | None = Field(default=0.3)
    """Maximum mean that raises no alarm."""


class UnreadJudgementsGuard(MetricGuard):
    """Watches `judge/unread`: judges write answers that are cut, or in which there is no score."""

    at_most: float | None = Field(default=0.1)
    """Maximum mean that raises no alarm, in judgements per response."""


class StalenessGuard(MetricGuard):
    """Watches `staleness/mean`: an update learns from samples of weights that are many versions old."""

    at_most: float | None = Field(default=4.0)
    """Maximum mean that raises no alarm, in versions."""


class OldestTokensGuard(MetricGuard):
    """Watches `staleness/max`: an update learns from single tokens that are far older than the rest."""

    at_most: float | None = Field(default=16.0)
    """Maximum mean that raises no alarm, in versions."""


class SampleSizeGuard(MetricGuard):
    """Watches `importance_sample_size`: few of the samples carry most of the weight of `algorithm.importance_correction`."""

    at_least: float | None = Field(default=0.3)
    """Minimum mean that raises no alarm, as a fraction of the samples."""


class MaskedWeightsGuard(MetricGuard):
    """Watches `importance_masked_fraction`: `algorithm.importance_correction` leaves little to learn from."""

    at_most: float | None = Field(default=0.3)
    """Maximum mean that raises no alarm."""


class CappedWeightsGuard(MetricGuard):
    """Watches `importance_capped_fraction`: many weights are at the cap, which no longer corrects them."""

    at_most: float | None = Field(default=0.3)
    """Maximum mean that raises no alarm."""


class OffPolicyGuard(MetricGuard):
    """Watches `off_policy_masked_fraction`: `algorithm.off_policy_mask` leaves little to learn from."""

    at_most: float | None = Field(default=0.3)
    """Maximum mean that raises no alarm."""


class LengthBiasGuard(MetricGuard):
    """Watches `tail/length_bias`: what is learnt from is shorter than what is drawn."""

    window: PositiveInt = Field(default=20, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    at_least: float | None = Field(default=0.8)
    """Minimum mean that raises no alarm."""


class ThroughputGuard(MetricGuard):
    """Watches `tokens_per_second`: the run has slowed down."""

    action: TimedAction = "alert"
    """As described for `kl`, but without `rollback`, which would make the result depend on timing."""
    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    fall: float | None = Field(default=0.3, gt=0.0, lt=1.0)
    """Minimum mean that raises no alarm, as a fraction of the median of the values before the window."""


class IdleDeviceGuard(MetricGuard):
    """Watches `devices/least_utilization_percentage`: a device does next to nothing from iteration to iteration."""

    action: TimedAction = "alert"
    """As described for `throughput`."""
    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Number of recent values whose mean is checked, as soon as that many exist."""
    at_least: float | None = Field(default=5.0, ge=0.0, le=100.0)
    """Minimum mean that raises no alarm, in percent."""


class CreepingMemoryGuard(SpecModel):
    """Watches `memory/PROCESS/...`: a process holds more and more memory, on its host or on its device.

    The slope is the median of the slopes between all values of the window, and both halves of the window must grow, so that
    starts, restarts, single large batches and growth that levels off raise no alarm.
    """

    action: TimedAction = "alert"
    """As described for `throughput`."""
    window: int = Field(default=50, ge=10, le=200)
    """Number of recent values that are checked, as soon as that many exist. An alarm is about new values only."""
    growth: PositiveFloat = 0.2
    """Minimum growth over the window that raises an alarm, as a fraction of the median of its values."""
    megabytes: NonNegativeFloat = 512.0
    """Minimum growth over the window that raises an alarm, in megabytes."""


class CustomGuard(MetricGuard):
    """A user-defined guard of any metric."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Name of the guard in its alarms."""
    metric: str
    """The metric, as listed in docs/formats.md; with a workload of your own also any that its class returns, those of
    `evaluate` after `evaluation/`. The guard has no effect if the run does not have the metric."""


class RewardLengthGuard(SpecModel):
    """Responses grow without benefit: the reward has not risen, or it has risen while fewer responses are correct."""

    action: Action = "alert"
    """As described for `kl`."""
    window: PositiveInt = Field(default=20, le=LONGEST_WINDOW)
    """Number of iterations in each of the two consecutive windows whose means are compared."""
    growth: float = Field(default=1.5, gt=1.0)
    """Minimum ratio of the response lengths of the two windows that raises an alarm."""
    gain: NonNegativeFloat = 0.0
    """The reward must rise by more than this to count as a benefit."""


class NonFiniteGuard(SpecModel):
    """Counts updates skipped because of a non-finite loss or gradient, each handled by `recovery.on_non_finite`."""

    action: Action = "alert"
    """As described for `kl`. If `recovery.on_non_finite` is not `skip`, the alarm reports that action instead."""
    window: PositiveInt = Field(default=10, le=LONGEST_WINDOW)
    """Number of recent iterations taken into account; the guard takes effect from the first one on."""
    at_most: NonNegativeInt = 0
    """Maximum number of skipped updates in the window that raises no alarm."""


class StalledPhaseGuard(SpecModel):
    """Watches the running phase: it takes much longer than before.

    Its deadline is derived from its last 20 durations.
    """

    action: TimedAction = "alert"
    """As described for `kl`. `pause` and `stop` interrupt a phase if it can be interrupted; otherwise they wait for
    its end or deadline."""
    fraction: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Fraction of its deadline after which a phase counts as stalled."""


class BudgetGuard(SpecModel):
    """The resources that the run may use over all its sessions and branches; checked after each iteration."""

    action: TimedAction = "pause"
    """As described for `kl`. A run that has exhausted its budget does not continue until the budget is raised."""
    device_hours: PositiveFloat | None = None
    """Hours in which drivers held devices, times their number: that of the devices of rollout or of trainer ranks, whichever is
    larger. Time for which a run that waits has given its devices back does not count. `null`: no limit."""
    wall_hours: PositiveFloat | None = None
    """Hours in driver sessions. `null`: no limit."""
    cost: Decimal | None = Field(default=None, gt=0, le=10**12, decimal_places=9)
    """Money, in the currency of the price file. `null`: no limit."""
    carbon_kg: Decimal | None = Field(default=None, gt=0, le=10**12, decimal_places=9)
    """Emission in kg of CO2, by the price file. `null`: no limit."""
    warn_at: float = Field(default=0.8, gt=0.0, lt=1.0)
    """Fraction of a limit at which an alarm with the action `alert` is raised."""

    @property
    def is_limited(self) -> bool:
        """True if there is a limit."""
        return self.limits_hours or self.needs_prices

    @property
    def limits_hours(self) -> bool:
        """True if there is a limit of hours."""
        return self.device_hours is not None or self.wall_hours is not None

    @property
    def needs_prices(self) -> bool:
        """True if a limit can be checked only with a price file."""
        return self.cost is not None or self.carbon_kg is not None


def _moment(given: object) -> datetime:
    """Returns a date and time as given or written; a number, a day alone or a time without a zone would be guessed."""
    try:
        at = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        at = None
    if isinstance(given, int | float) or at is None or at.tzinfo is None:
        raise ValueError("expected a date and time with a time zone, such as 2026-11-27T18:00:00+01:00")
    return at


class DeadlineGuard(SpecModel):
    """The time by which the run should reach its target, and what happens if it has not.

    As soon as the forecast, by the durations of the newest iterations, is later than the deadline, an alarm with the
    action `alert` is raised.
    """

    at: Annotated[AwareDatetime, BeforeValidator(_moment)] | None = None
    """The deadline, with a time zone, such as 2026-11-27T18:00:00+01:00. `null`: none."""
    action: TimedAction = "alert"
    """What happens once the deadline has passed, as described for `kl`. With `pause` and `stop` the run does not
    continue until the deadline is moved."""


class NotifySpec(SpecModel):
    """Where to send alarms and the news that the run was paused or has failed."""

    addresses: Annotated[SecretReference, Names("secret")] = SecretReference(env="YATT_NOTIFY")
    """Where the addresses in Apprise's notation are, separated by spaces. They are secrets."""
    interval_seconds: NonNegativeFloat = 60.0
    """Minimum time between two messages; events in between are combined into the next one. The message about the
    end of a session is sent at once."""


class GuardsSpec(SpecModel):
    """What is watched, and what happens on an alarm."""

    kl: KlGuard | None = KlGuard()
    entropy: EntropyGuard | None = EntropyGuard()
    reward_against_length: RewardLengthGuard | None = RewardLengthGuard()
    train_rollout_logprob_diff: LogProbGapGuard | None = LogProbGapGuard()
    gradient_norm: GradientNormGuard | None = GradientNormGuard()
    non_finite: NonFiniteGuard | None = NonFiniteGuard()
    truncation: TruncationGuard | None = TruncationGuard()
    unscored: UnscoredGuard | None = UnscoredGuard()
    mostly_unscored: MostlyUnscoredGuard | None = MostlyUnscoredGuard()
    unread_judgements: UnreadJudgementsGuard | None = UnreadJudgementsGuard()
    staleness: StalenessGuard | None = StalenessGuard()
    oldest_tokens: OldestTokensGuard | None = OldestTokensGuard()
    sample_size: SampleSizeGuard | None = SampleSizeGuard()
    masked_weights: MaskedWeightsGuard | None = MaskedWeightsGuard()
    capped_weights: CappedWeightsGuard | None = CappedWeightsGuard()
    off_policy: OffPolicyGuard | None = OffPolicyGuard()
    length_bias: LengthBiasGuard | None = LengthBiasGuard()
    throughput: ThroughputGuard | None = ThroughputGuard()
    stalled_phase: StalledPhaseGuard | None = StalledPhaseGuard()
    idle_device: IdleDeviceGuard | None = IdleDeviceGuard()
    creeping_memory: CreepingMemoryGuard | None = CreepingMemoryGuard()
    custom: tuple[CustomGuard, ...] = ()
    """Guards of other metrics, or of the same metrics with other bounds."""
    budget: BudgetGuard = BudgetGuard()
    deadline: DeadlineGuard = DeadlineGuard()
    rollback_limit: PositiveInt = 3
    """Number of rollbacks by guards to the same iteration after which the run pauses."""
    notify: NotifySpec | None = None
    """`null`: no notifications are sent; alarms are still recorded in the ledger."""

    def mistakes(self, own_metrics: bool = False) -> Iterator[str]:
        """Yields one line per mistake, starting with the key to change.

        own_metrics: whether the run has metrics of which its workload alone knows the names.
        """
        taken = set(type(self).model_fields)
        for number, guard in enumerate(self.custom):
            place = f"guards.custom.{number}"
            if guard.name in taken:
                yield f"{place}.name: another guard is already named {guard.name!r}; choose another name"
            taken.add(guard.name)
            if not own_metrics and not is_known(guard.metric):
                yield f"{place}.metric: there is no metric {guard.metric!r}; {nearest_metric(guard.metric)}"
            elif is_timing(guard.metric) and guard.action == "rollback":
                yield (
                    f"{place}.action: {guard.metric} depends on timing, and results must not; expected alert, pause or "
                    "stop"
                )
