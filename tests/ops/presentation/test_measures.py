"""What runs of each objective show in the summary, `yatt show`, `yatt watch`, picture and charts, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.metrics import RESULT, Metric
from flows.reports.learning_curve import learning_figure, write_learning_plot
from flows.reports.measures import BY_KIND, POLICY, SAMPLED_PAIRS, SFT, measures_for, measures_of
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.protocols import IterationSummary
from flows.run.results import run_results
from ops.cli.commands.inspection.run_picture import line
from ops.dashboard.pages.charts import LEARNING, learning_charts
from ops.presentation.progress import LineObserver
from ops.presentation.run_summary import print_summary
from ops.queries.run import run_view
from ops.queries.watch import watched
from tests.engines.train.preferred import KINDS, preferred_spec
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.spec.objective import ObjectiveSpec
from yatt_core.spec.sections.metric_names import is_known

STEPS = {"loss": 0.9, "grad_norm": 1.5, "learning_rate": 1e-3, "tokens": 400.0}
AGREED = {"preference/accuracy": 0.6, "preference/margin": 0.2}
PAIRED = {"preference/chosen_reward": 0.3, "preference/rejected_reward": 0.1}
LIKELY = {"preference/chosen_log_prob": -9.0, "preference/rejected_log_prob": -8.0}
BOUNDS = {"evaluation/accuracy_low": 0.4, "evaluation/accuracy_high": 0.9}
MEASURED: dict[str, dict[str, float]] = {
    "sft": {},
    "dpo": AGREED | PAIRED | LIKELY,
    "simpo": AGREED | PAIRED | LIKELY,
    "kto": AGREED,
    "reward_model": AGREED | PAIRED,
}
"""The metrics of an iteration by kind, as the trainers of `tests/engines/train/preferred.py` report them, beside `STEPS`."""
TOLD = {
    "sft": ["held-out loss", "training loss"],
    "dpo": ["held-out accuracy", "held-out margin", "held-out chosen reward", "held-out rejected reward"],
    "kto": ["held-out accuracy", "held-out margin"],
    "reward_model": ["held-out accuracy", "held-out margin"],
}
TOLD["simpo"] = TOLD["dpo"]
NEVER = ("reward/mean", "entropy", "kl", "length/response_mean")


def learnt(home: Home, folder: Path, kind: str) -> str:
    """Creates a run that has committed iterations 0 to 2 with the metrics of its objective."""
    run: str = seed_run(home, committed=-1, spec=preferred_spec(folder, KINDS[kind], rows=60), ends=False)
    training = STEPS | MEASURED[kind]
    held_out = {"evaluation/loss": 3.0} | {key.replace("preference", "evaluation"): 0.25 for key in MEASURED[kind]}
    held_out |= BOUNDS if MEASURED[kind] else {}
    with Ledger.open(home.ledger) as ledger:
        for iteration in range(3):
            values = held_out if iteration == 0 else held_out | training
            metrics = [Metric(key, value + iteration / 8, RESULT) for key, value in values.items()]
            commit = IterationCommit(
                branch=0,
                iteration=iteration,
                control_state={},
                logged_at_ms=1000,
                experience_digest=None,
                weights_digest="w",
                metrics=metrics,
            )
            ledger.commits.commit(Fence.of_run(run, 1), commit)
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_summary_and_show_tell_what_the_objective_measures(
    yatt: Yatt, home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = learnt(home, tmp_path / "rows", kind)
    with Ledger.open(home.ledger) as ledger:
        print_summary(ledger, home, run_results(ledger, run), current_spec(ledger, run))
        seen = line(watched(ledger, run))
        health = run_view(ledger, run).health
    text = capsys.readouterr().out
    shown = yatt("show", run).out
    told = [each["name"] for each in yatt("show", run, "-o", "json").document["measured"]]
    assert told == TOLD[kind]
    for name in told:
        assert f"  {name} " in text and f"  {name} " in shown and f"  {name} " in seen
    if kind == "sft":
        assert "held-out loss 3.000 before training, now 3.250\n" in text
        assert "training loss 1.025 in iteration 1, 1.150 in iteration 2\n" in text
        assert "accuracy" not in text + shown + seen
    else:
        assert "held-out accuracy 0.250 before training, now 0.500 (95 % interval 0.650 to 1.150)\n" in text
        assert "0.500 (95 % interval 0.650 to 1.150), before training 0.250" in shown
    assert set(NEVER).isdisjoint(health) and {"loss", "evaluation/loss"} <= set(health)
    assert "\n  reward " not in text and "entropy" not in shown


@pytest.mark.parametrize("kind", KINDS)
def test_curves_charts_and_the_picture_have_all_series_and_no_empty_one(
    yatt: Yatt, home: Home, tmp_path: Path, kind: str
) -> None:
    run = learnt(home, tmp_path / "rows", kind)
    curves = {row["key"] for row in yatt("show", run, "-o", "json").document["curves"]}
    assert curves == set(BY_KIND[kind].curves) and "evaluation/loss" in curves
    with Ledger.open(home.ledger) as ledger:
        measures = measures_of(ledger, run)
        recorded = ledger.metrics.latest(run).keys()
        figure = learning_figure(ledger, run)
    charted = {key for chart in learning_charts(run, measures) for key in chart.sources[0].names}
    assert charted == {key for each in LEARNING for key, _ in each.names} & recorded
    assert set(measures.told) <= curves | {key for key in measures.told if key.endswith("_reward")}
    assert figure is not None
    assert len(figure.axes) == len(measures.axes) == (1 if kind == "sft" else 2)
    drawn = [each for axes in figure.axes for each in axes.get_lines()]
    assert all(len(np.asarray(each.get_xdata())) > 1 for each in drawn)
    labels = {str(each.get_label()) for each in drawn}
    expected = {"sft": 2, "kto": 4}.get(kind, 5)
    assert len(labels) == expected and not {label for label in labels if "entropy" in label}
    assert [len(each.get_texts()) for each in figure.legends] == [expected]
    bands = [band for axes in figure.axes for band in axes.collections]
    assert len(bands) == (0 if kind == "sft" else 1), "the interval of the held-out accuracy"


def test_a_picture_has_no_axis_without_points_and_there_is_none_without_any(home: Home) -> None:
    empty = seed_run(home, committed=-1)
    begun = seed_run(home, committed=0)
    with Ledger.open(home.ledger) as ledger:
        assert write_learning_plot(ledger, empty, home.run_folder(empty)) is None
        figure = learning_figure(ledger, begun)
    assert figure is not None and [axes.get_ylabel() for axes in figure.axes] == ["accuracy, reward"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["held-out accuracy"]


def test_the_summary_says_why_there_is_no_picture(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    run = seed_run(home, committed=-1)
    with Ledger.open(home.ledger) as ledger:
        print_summary(ledger, home, run_results(ledger, run), current_spec(ledger, run))
    assert "picture   none: nothing is measured yet" in capsys.readouterr().out


def test_progress_on_demonstrations_names_the_held_out_loss() -> None:
    lines: list[str] = []
    observer = LineObserver("toy-1", write=lines.append, now=lambda: 0.0, sft=lambda: False)
    for iteration, loss in enumerate((3.0, 2.5)):
        metrics: dict[str, float] = {"evaluation/loss": loss}
        observer.committed(IterationSummary(iteration=iteration, target=4, metrics=metrics, seconds=1.0))
    assert "held-out loss 2.500 (before training 3.000)" in lines[-1] and len(lines) == 2


def test_each_objective_has_its_measures_and_each_metric_is_known() -> None:
    kinds = {each.model_fields["kind"].default for each in objective_classes()}
    assert BY_KIND.keys() == {None, *kinds}
    assert measures_for(None) is POLICY and measures_for({"kind": "sft"}) is SFT
    assert measures_for({"kind": "dpo", "pairs": "sampled"}) is SAMPLED_PAIRS
    everything = (*BY_KIND.values(), SAMPLED_PAIRS)
    for each in everything:
        assert len(each.axes) <= 2 and all(len(axis.keys) <= 3 for axis in each.axes)
        keys = {
            *each.told,
            *each.curves,
            *each.health,
            *each.charted,
            *(key for axis in each.axes for key in axis.keys),
        }
        assert all(map(is_known, keys))
    charted = frozenset[str]().union(*(each.charted for each in everything))
    assert charted == {key for drawn in LEARNING for key, _ in drawn.names}, "each chart belongs to an objective"


def objective_classes() -> tuple[Any, ...]:
    """Returns the classes of the spec's objectives."""
    union: Any = ObjectiveSpec.__origin__  # type: ignore[attr-defined]
    return tuple(union.__args__)
