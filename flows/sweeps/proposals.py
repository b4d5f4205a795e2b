"""Who proposes the settings of a sweep: a grid, chance, or Optuna's tree-structured Parzen estimator.

Consumes the sweep's spec, the number of the trial, and the history: the trials proposed before and what was measured of them.
Produces a setting. It is a function of these alone: each proposal has a sampler of its own, whose seed follows from the spec's
seed and the trial's number, and which learns the history from its rows. Nothing has to be kept between proposals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from flows.sweeps.space import Choices, Range, Setting, Space, drawn_setting, grid
from flows.sweeps.spec import SweepSpec
from yatt_core.keys import stable_seed

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial that was proposed before.

    values: what was measured, by iteration; empty before the first rung.
    ended: whether it has reached the last rung.
    failed: whether it has no value and never will.
    under_way: whether it is being driven.
    """

    setting: Setting
    values: Mapping[int, float] = field(default_factory=dict)
    ended: bool = False
    failed: bool = False
    under_way: bool = False


def propose(spec: SweepSpec, seed: int, number: int, history: Sequence[PastTrial]) -> Setting:
    """Returns the setting of a trial.

    seed: that of the runs' spec.
    number: counts from 0.
    """
    match spec.sampler:
        case "grid":
            return next(islice(grid(spec.domains), number, None))
        case "random":
            return drawn_setting(spec.domains, stable_seed("sweep", seed, number))
        case "tpe":
            return _asked(spec, stable_seed("sweep", seed, number) % 2**32, history)


def _asked(spec: SweepSpec, seed: int, history: Sequence[PastTrial]) -> Setting:
    """Asks Optuna (https://optuna.org), which knows a value to choose from by its index."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(
        seed=seed,
        # As many random proposals as a quarter of the trials, before the estimator has something to learn from.
        n_startup_trials=max(2, spec.count // 4),
        constant_liar=True,
        # Left open, it depends on the version: a sweep that Optuna 4 began would go on otherwise under 5.
        multivariate=False,
    )
    study = optuna.create_study(sampler=sampler, direction=spec.goal)
    distributions = {key: _distribution(each) for key, each in spec.domains.items()}
    study.add_trials([_frozen(each, spec.domains, distributions) for each in history])
    asked = study.ask(distributions).params
    return {key: _value(each, asked[key]) for key, each in spec.domains.items()}


def _distribution(dimension: Choices | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choices):
        return CategoricalDistribution(range(len(dimension.values)))
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(float(dimension.low), float(dimension.high), log=dimension.log)


def _frozen(past: PastTrial, space: Space, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    values = list(past.values.values())
    if past.failed:
        state = TrialState.FAIL
    elif past.under_way:
        state = TrialState.RUNNING
    else:
        state = TrialState.COMPLETE if past.ended else TrialState.PRUNED
    return create_trial(
        state=state,
        value=values[-1] if state == TrialState.COMPLETE else None,
        params={key: _known(space[key], value) for key, value in past.setting.items()},
        distributions=distributions,
        intermediate_values=dict(past.values),
    )


def _known(dimension: Choices | Range, value: Any) -> Any:
    return dimension.values.index(value) if isinstance(dimension, Choices) else value


def _value(dimension: Choices | Range, asked: Any) -> Any:
    return dimension.values[asked] if isinstance(dimension, Choices) else dimension.readable(asked)
