"""What runs show, by objective or workload: in summaries, curves of terminals, the run's picture and default charts.

Consumes a run's spec and, for `told_of`, its metrics in the ledger. Produces `Measures`, the one table of which
metrics are shown where, and the first and newest values of the most telling ones. docs/formats.md explains the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from yatt_core.workload_kinds import parts_in

if TYPE_CHECKING:
    from db.ledger import Ledger

HELD_OUT = "evaluation/"
ACCURACY = "evaluation/accuracy"
MOST_DRAWN = 3
"""Series on an axis of a run's picture."""
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "reward/mean": "reward",
        "evaluation/accuracy": "held-out accuracy",
        "evaluation/loss": "held-out loss",
        "evaluation/margin": "held-out margin",
        "evaluation/chosen_reward": "held-out chosen reward",
        "evaluation/rejected_reward": "held-out rejected reward",
        "preference/accuracy": "training accuracy",
        "preference/margin": "training margin",
        "preference/chosen_reward": "training chosen reward",
        "preference/rejected_reward": "training rejected reward",
        "loss": "training loss",
        "length/response_mean": "response length",
        "grad_norm": "gradient norm",
        "tokens_per_second": "tokens/s",
    }
)
"""Words for metrics; others are shown by their keys."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis of a run's picture.

    label: with the unit, if there is one.
    from_zero: whether the axis begins at 0.
    """

    label: str
    keys: tuple[str, ...]
    from_zero: bool = False


@dataclass(frozen=True, slots=True)
class Measures:
    """What the runs of an objective show; metrics that a run does not have are left out everywhere.

    told: metrics of which summaries name the first and the newest value.
    curves: metrics whose curves `yatt show` draws.
    health: metrics that show whether learning is healthy, in display order.
    axes: the left and the right axis of the picture.
    charted: metrics in the default charts of the dashboard.
    """

    told: tuple[str, ...]
    curves: tuple[str, ...]
    health: tuple[str, ...]
    axes: tuple[Axis, ...]
    charted: frozenset[str]


_SAMPLED = frozenset(
    {
        "reward/mean",
        "reward/std",
        "evaluation/accuracy",
        "accuracy",
        "length/response_mean",
        "truncated_fraction",
        "zero_spread_fraction",
        "sampling/valid_fraction",
    }
)
_PREFERRED = frozenset({"preference/accuracy", "preference/margin"})
_PAIRED = frozenset({"preference/chosen_reward", "preference/rejected_reward"})
_LIKELY = frozenset({"preference/chosen_log_prob", "preference/rejected_log_prob"})
_HELD_OUT_ROWS = frozenset({"evaluation/loss", "evaluation/accuracy", "evaluation/margin"})
_STEPS = frozenset({"loss", "grad_norm"})

POLICY = Measures(
    told=("evaluation/accuracy", "reward/mean"),
    curves=("reward/mean", "evaluation/accuracy", "kl", "entropy", "length/response_mean", "grad_norm"),
    health=(
        "reward/mean",
        "evaluation/accuracy",
        "kl",
        "entropy",
        "length/response_mean",
        "truncated_fraction",
        "clip_fraction",
        "ratio_max",
        "grad_norm",
        "train_rollout_logprob_diff_mean",
    ),
    axes=(
        Axis("accuracy, reward", ("reward/mean", "evaluation/accuracy")),
        Axis("entropy, nats per token", ("entropy",), from_zero=True),
    ),
    charted=_SAMPLED
    | _STEPS
    | {
        "kl",
        "distillation_kl",
        "entropy",
        "clip_fraction",
        "value_clip_fraction",
        "ratio_max",
        "ratio_min",
        "value_grad_norm",
        "train_rollout_logprob_diff_mean",
        "train_rollout_logprob_diff_max",
        "policy_loss",
        "value_loss",
    },
)
SFT = Measures(
    told=("evaluation/loss", "loss"),
    curves=("evaluation/loss", "loss", "grad_norm"),
    health=("evaluation/loss", "loss", "grad_norm"),
    axes=(Axis("loss, nats per token", ("loss", "evaluation/loss")),),
    charted=_STEPS | {"evaluation/loss"},
)
_PAIR_CURVES = (
    "evaluation/accuracy",
    "preference/accuracy",
    "evaluation/margin",
    "preference/margin",
    "preference/chosen_reward",
    "preference/rejected_reward",
    "evaluation/loss",
    "loss",
    "grad_norm",
)
_PAIR_AXES = (
    Axis("accuracy", ("preference/accuracy", "evaluation/accuracy")),
    Axis("reward, margin", ("evaluation/margin", "preference/chosen_reward", "preference/rejected_reward")),
)
PAIRS = Measures(
    told=("evaluation/accuracy", "evaluation/margin", "evaluation/chosen_reward", "evaluation/rejected_reward"),
    curves=_PAIR_CURVES,
    health=_PAIR_CURVES,
    axes=_PAIR_AXES,
    charted=_HELD_OUT_ROWS | _PREFERRED | _PAIRED | _LIKELY | _STEPS,
)
REWARD_MODEL = Measures(
    told=("evaluation/accuracy", "evaluation/margin"),
    curves=_PAIR_CURVES,
    health=_PAIR_CURVES,
    axes=_PAIR_AXES,
    charted=_HELD_OUT_ROWS | _PREFERRED | _PAIRED | _STEPS,
)
_LABEL_CURVES = tuple(key for key in _PAIR_CURVES if key not in _PAIRED)
LABELS = Measures(
    told=("evaluation/accuracy", "evaluation/margin"),
    curves=_LABEL_CURVES,
    health=_LABEL_CURVES,
    axes=(
        Axis("accuracy", ("preference/accuracy", "evaluation/accuracy")),
        Axis("margin", ("preference/margin", "evaluation/margin")),
    ),
    charted=_HELD_OUT_ROWS | _PREFERRED | _STEPS,
)
_SAMPLED_PAIR_CURVES = (
    "reward/mean",
    "evaluation/accuracy",
    "preference/accuracy",
    "preference/margin",
    "preference/chosen_reward",
    "preference/rejected_reward",
    "length/response_mean",
    "loss",
    "grad_norm",
)
SAMPLED_PAIRS = Measures(
    told=(
        "evaluation/accuracy",
        "reward/mean",
        "preference/margin",
        "preference/chosen_reward",
        "preference/rejected_reward",
    ),
    curves=_SAMPLED_PAIR_CURVES,
    health=(*_SAMPLED_PAIR_CURVES, "truncated_fraction"),
    axes=(
        Axis("accuracy, reward", ("reward/mean", "evaluation/accuracy")),
        Axis("implicit reward", ("preference/margin", "preference/chosen_reward", "preference/rejected_reward")),
    ),
    charted=_SAMPLED | _PREFERRED | _PAIRED | _LIKELY | _STEPS,
)
BY_KIND: Mapping[str | None, Measures] = MappingProxyType(
    {
        None: POLICY,
        "sft": SFT,
        "dpo": PAIRS,
        "simpo": PAIRS,
        "kto": LABELS,
        "reward_model": REWARD_MODEL,
    }
)
"""What runs that learn from rows show, by `objective.kind`; None: runs without an objective."""


def measures_for(objective: Mapping[str, Any] | None) -> Measures:
    """Returns what the runs of an objective show.

    objective: the spec's `objective` as plain values.
    """
    if objective is None:
        return POLICY
    found = BY_KIND[objective["kind"]]
    return SAMPLED_PAIRS if found is PAIRS and objective.get("pairs") == "sampled" else found


def measures_in(spec: Mapping[str, Any], recorded: Iterable[str]) -> Measures:
    """Returns what a run shows.

    spec: its spec as plain values.
    recorded: the keys of its metrics, by which that of a workload of one's own goes.
    """
    if not parts_in(spec).own_metrics:
        return measures_for(spec.get("objective"))
    bounds = tuple(f"{ACCURACY}_{end}" for end in ("low", "high"))
    held_out = tuple(sorted(key for key in recorded if key.startswith(HELD_OUT) and key not in bounds))
    curves = (*held_out, "loss", "grad_norm")
    axes = (Axis("held out", held_out[:MOST_DRAWN]), Axis("loss", ("loss",)))
    return Measures(told=(*held_out, "loss"), curves=curves, health=curves, axes=axes, charted=_STEPS | set(held_out))


def measures_of(ledger: Ledger, run: str) -> Measures:
    """Returns what a run shows, by its full id. Raises `RunNotFound`."""
    return measures_in(ledger.runs.revision(run).spec, ledger.metrics.latest(run))


def name_of(key: str) -> str:
    """Returns a metric's name in words, or its key."""
    return NAMES.get(key, key)


@dataclass(frozen=True, slots=True)
class MetricChange:
    """The first and the newest value of a metric.

    name: the metric in words.
    first_at, last_at: their iterations.
    low, high: bounds of the newest value's 95 % interval; None for a metric without an interval.
    """

    key: str
    name: str
    first_at: int
    first: float
    last_at: int
    last: float
    low: float | None
    high: float | None

    @property
    def before(self) -> bool:
        """True if the first value is that of the held-out data before the first iteration."""
        return self.key.startswith(HELD_OUT) and self.first_at == 0


def told_of(ledger: Ledger, run: str) -> list[MetricChange]:
    """Returns the most telling metrics that a run has."""
    found = ((key, ledger.metrics.history(run, key)) for key in measures_of(ledger, run).told)
    return [_told(ledger, run, key, points) for key, points in found if points]


def bounds_of(ledger: Ledger, run: str, key: str) -> dict[int, tuple[float, float]]:
    """Returns the bounds of a metric's 95 % interval by iteration; empty if it has none."""
    low, high = (dict(ledger.metrics.history(run, f"{key}_{bound}")) for bound in ("low", "high"))
    return {step: (low[step], high[step]) for step in low if step in high}


def _told(ledger: Ledger, run: str, key: str, points: list[tuple[int, float]]) -> MetricChange:
    first_at, first = points[0]
    last_at, last = points[-1]
    low, high = bounds_of(ledger, run, key).get(last_at, (None, None)) if key.startswith(HELD_OUT) else (None, None)
    return MetricChange(
        key=key,
        name=name_of(key),
        first_at=first_at,
        first=first,
        last_at=last_at,
        last=last,
        low=low,
        high=high,
    )
