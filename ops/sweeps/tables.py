"""A sweep as tables: its trials, best first, and its winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ops.presentation.output import write, write_list
from ops.sweeps.words import value_text
from yatt_core.counting import many

if TYPE_CHECKING:
    from ops.sweeps.view import SweepView, TrialView


def print_sweep(view: SweepView) -> None:
    """Writes a sweep."""
    from ops.sweeps.view import trial_columns

    stopping = f"rungs {', '.join(map(str, view.rungs))}" if view.asha else f"{many(view.rungs[-1], 'iteration')} each"
    write(f"{view.sweep}: {many(view.planned, 'trial')} by {view.sampler}, {stopping}; {view.goal} {view.metric}")
    if len(view.seeds) > 1:
        write(f"seeds {', '.join(map(str, view.seeds))}; values are means over them")
    write_list(trial_columns(view), sorted(view.trials, key=lambda trial: _order(view, trial)))
    write(
        f"{many(view.iterations, 'iteration')}, {view.iterations_fraction:.1%} of those of all trials run to their ends"
    )
    if view.winner_setting is not None:
        setting = " ".join(f"--set {key}={value_text(value)}" for key, value in view.winner_setting.items())
        write(f"best: trial {view.winner}, {view.metric} {view.winner_value:.5g}: {setting}")
        if len(view.tied) > 1:
            write(f"equally good: trials {', '.join(map(str, view.tied))}; the first is taken as the best")
    if view.following:
        write(f"next: {view.following}; `yatt sweep resume {view.sweep}` goes on")


def _order(view: SweepView, trial: TrialView) -> tuple[float, float, int]:
    """Orders the winner first, then by the last rung that was reached, and by the value there."""
    value = 0.0 if trial.value is None else trial.value
    return (-len(trial.values), -value if view.goal == "maximize" else value, trial.trial)
