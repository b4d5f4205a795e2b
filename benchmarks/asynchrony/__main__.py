"""How much faster are whole iterations under each mode of asynchrony, in simulated time, and how stale is what they learn?

Today's `dynamic` placement runs every described workload; then every mode does, each deciding by tokens and never by the
clock. The seconds of a bound stand beside them: engines that are always full and never switch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.asynchrony.live import live_modes
from benchmarks.asynchrony.modes import MODES, ModeOutcome, run_mode
from benchmarks.asynchrony.quickstart import quickstart_ratios
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.placement import FOLDER, GOLDEN, decide_at
from benchmarks.placement_files import read_workload
from benchmarks.placement_lower_bound import overlapped_lower_bound
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.simulation.campaign import Campaign, draw_iterations, run_campaign, setting_of
from yatt_core.placement.simulation.overlap import (
    Learner,
    commits,
    learner_on,
    shared_seconds,
    streamed_seconds,
    sync_seconds,
)
from yatt_core.placement.simulation.token_times import ready_groups
from yatt_core.placement.workload import Scenario

PARTS = ("simulated", "live")
LONG_TAIL = "very_long_tail"
MOST_LAG = 2.0
TAIL_ITERATIONS = 20
"""Five cycles of three short rounds and a long one."""

START_S = 5.0
"""Seconds of the shortest start of a run's actors, beside which its first plan is made: new processes import torch and load."""


@dataclass(frozen=True, slots=True)
class Today:
    """A workload under today's `dynamic`.

    tokens: learnt from in each iteration.
    seconds: of each whole iteration, trainer and engines taking turns on all devices.
    bound: seconds of each iteration whose engines are always full and never switch.
    plan_s: of the slowest plan, the part that learning from the iteration before does not hide.
    first_plan_s: of the first plan, the part that the start of the actors does not hide.
    lagging_plan_s: of the slowest plan of a run with a lag, the part that collecting the iteration before does not hide.
    """

    workload: Scenario
    campaign: Campaign
    tokens: list[int]
    seconds: list[float]
    bound: list[float]
    plan_s: float
    first_plan_s: float
    lagging_plan_s: float


def run_today(workload: Scenario) -> Today:
    """Runs a workload under `dynamic`."""
    campaign = run_campaign(workload, Dynamic())
    tokens = [
        sum(sample.prompt + sample.response for wave in iteration.waves for sample in wave.samples)
        for iteration in campaign.past
    ]
    collect_s = campaign.collect_s
    seconds = [shared_seconds(workload, each, count) for each, count in zip(collect_s, tokens, strict=True)]
    hiding = [whole - collecting for whole, collecting in zip(seconds, collect_s, strict=True)]
    later = [max(0.0, plan - hidden) for plan, hidden in zip(campaign.plan_cpu_s[1:], hiding, strict=False)]
    behind = [max(0.0, plan - hidden) for plan, hidden in zip(campaign.plan_cpu_s[1:], collect_s, strict=False)]
    return Today(
        workload=workload,
        campaign=campaign,
        tokens=tokens,
        seconds=seconds,
        bound=[overlapped_lower_bound(workload, waves) for waves in draw_iterations(workload)],
        plan_s=max(later, default=0.0),
        first_plan_s=max(0.0, campaign.plan_cpu_s[0] - START_S),
        lagging_plan_s=max(behind, default=0.0),
    )


# -- a trainer with devices of its own -----------------------------------------------------------------------------------


def learner_taking(today: Today, share: float) -> Learner:
    """Returns a trainer whose learning takes this share of the seconds of collect, in the mean."""
    wanted = share * statistics.fmean(today.campaign.collect_s)
    fixed = today.workload.training.fixed_s
    return Learner(fixed, (wanted - fixed) / statistics.fmean(today.tokens))


def streamed_ratio(today: Today) -> float:
    """Returns how much faster iterations are if a trainer that takes half as long as collect learns from groups as they come."""
    learner = learner_taking(today, 0.5)
    sync_s = sync_seconds(today.workload)
    before: str | None = None
    apart: list[float] = []
    streamed: list[float] = []
    for plan, iteration, tokens in zip(today.campaign.plans, today.campaign.past, today.tokens, strict=True):
        (wave,) = iteration.waves
        groups, collect_s = ready_groups(
            setting=setting_of(today.workload),
            roles=plan.roles,
            runtime_policy=plan.runtime_policy,
            wave=wave,
            before=before,
        )
        before = plan.roles
        apart.append(collect_s + learner.seconds(tokens) + sync_s)
        streamed.append(streamed_seconds(groups, learner) + sync_s)
    return sum(apart) / sum(streamed)


def lag1_ratios(today: Today) -> tuple[float, float]:
    """Returns how much faster lag 1 is than lag 0 if learning takes as long as collect: once filled, and over the whole run."""
    learner = learner_taking(today, 1.0)
    learn_s = [learner.seconds(tokens) for tokens in today.tokens]
    collect_s = today.campaign.collect_s
    sync_s = sync_seconds(today.workload)
    none = commits(collect_s, learn_s, 0, sync_s)
    one = commits(collect_s, learn_s, 1, sync_s)
    filled = (one[-2] - collect_s[0]) / (len(one) - 1)
    return none[-1] / len(none) / filled, none[-1] / one[-1]


# -- figures -------------------------------------------------------------------------------------------------------------


def ratio(today: Today, outcome: ModeOutcome) -> float:
    """Returns how much faster a mode's iterations are than today's, in the mean."""
    return statistics.fmean(today.seconds) / statistics.fmean(outcome.seconds)


def best_mode(todays: Sequence[Today], outcomes: Sequence[Sequence[ModeOutcome]]) -> tuple[str, float]:
    """Returns the mode with the greatest geometric mean of ratios among those nowhere staler than allowed, and that mean."""
    found: dict[str, float] = {}
    for number, mode in enumerate(MODES):
        of_mode = [row[number] for row in outcomes]
        if max(outcome.staleness.tokens for outcome in of_mode) <= MOST_LAG:
            pairs = zip(todays, of_mode, strict=True)
            found[mode.name] = statistics.geometric_mean(ratio(today, outcome) for today, outcome in pairs)
    name = max(found, key=lambda each: found[each])
    return name, found[name]


def figures_of(todays: Sequence[Today], outcomes: Sequence[Sequence[ModeOutcome]]) -> dict[str, float | None]:
    """Computes the figures; None where the workloads lack what a figure is about."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    known = [today for today in todays if today.workload.name in golden]
    over_split = [sum(t.campaign.collect_s) / golden[t.workload.name]["best_split"]["total"] for t in known]
    over_bound = [sum(t.campaign.collect_s) / golden[t.workload.name]["lower_bound"]["total"] for t in known]
    name, best = best_mode(todays, outcomes)
    place = [mode.name for mode in MODES].index(name)
    bests = [statistics.fmean(row[place].seconds) for row in outcomes]
    figures: dict[str, float | None] = {
        **dict.fromkeys(("streamed_ratio", "lag1_ratio", "lag1_ratio_whole_run")),
        **dict.fromkeys(("slices_ratio", "slices_lag_mean", "tail_ratio", "tail_lag_mean")),
        "best_ratio": best,
        "best_lag_mean": max(row[place].staleness.tokens for row in outcomes),
        "best_over_bound": statistics.geometric_mean(
            seconds / statistics.fmean(today.bound) for seconds, today in zip(bests, todays, strict=True)
        ),
        "bound_ratio": statistics.geometric_mean(sum(today.seconds) / sum(today.bound) for today in todays),
        "bound_ratio_fixed": statistics.geometric_mean(
            sum(t.seconds) / (sum(t.bound) + len(t.bound) * t.workload.training.fixed_s) for t in todays
        ),
        "geomean_ratio_to_best_split": statistics.geometric_mean(over_split) if known else None,
        "mean_ratio_to_lower_bound": statistics.fmean(over_bound) if known else None,
    }
    for today, row in zip(todays, outcomes, strict=True):
        if today.workload.name == LONG_TAIL:
            named = {outcome.mode: outcome for outcome in row}
            tail_mode = next(mode for mode in MODES if mode.name == "tail")
            tail = run_mode(today.workload, tail_mode, TAIL_ITERATIONS)
            figures["streamed_ratio"] = streamed_ratio(today)
            figures["lag1_ratio"], figures["lag1_ratio_whole_run"] = lag1_ratios(today)
            figures["slices_ratio"] = ratio(today, named["slices"])
            figures["slices_lag_mean"] = named["slices"].staleness.tokens
            figures["tail_ratio"] = ratio(today, tail)
            figures["tail_lag_mean"] = tail.staleness.tokens
    return figures


def plan_figures(todays: Sequence[Today], large: bool) -> dict[str, float | None]:
    """Computes what plans add to an iteration. large: also plans for 16,384 devices."""
    seconds = [*(today.plan_s for today in todays), *(today.lagging_plan_s for today in todays)]
    first = [today.first_plan_s for today in todays]
    at_large: float | None = None
    if large:
        path = FOLDER / "w11_large_512.yaml"
        at_large = decide_at(path, 32)
        workload = read_workload(path)
        learner = learner_on(workload, workload.cluster.devices)
        seconds.append(max(0.0, at_large - learner.fixed_s - workload.switch.train_s))
    return {
        "plan_s_max": max([*seconds, *first]),
        "plan_s_max_after_first": max(seconds),
        "plan_cpu_s_16384": at_large,
    }


def main() -> None:
    """Runs the benchmark and prints its report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--workload", type=Path, nargs="+", help="workload files in place of the eleven")
    parser.add_argument(
        "--quickstart", type=int, metavar="ROUNDS", help="only train the quickstart with each mode, in turn"
    )
    parser.add_argument("--iterations", type=int, default=30, help="iterations of the quickstart (default: 30)")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: everything)"
    )
    options: argparse.Namespace = parser.parse_args()
    before = load_average()
    if options.quickstart:
        ratios, seconds = quickstart_ratios(options.quickstart, options.iterations)
        load = [before, load_average()]
        print_report(Report("asynchrony", ratios, [0], load, details={"iteration_seconds": seconds}), options.json)
        return
    figures: dict[str, float | None] = {}
    details: dict[str, Any] = {}
    todays: list[Today] = []
    if "simulated" in options.parts:
        todays, outcomes = simulated(options.workload or sorted(FOLDER.glob("*.yaml")))
        figures = {**figures_of(todays, outcomes), **plan_figures(todays, not options.workload)}
        pairs = zip(todays, outcomes, strict=True)
        details["best"] = best_mode(todays, outcomes)[0]
        details["workloads"] = [row for today, of_workload in pairs for row in rows_of(today, of_workload)]
    live = live_modes(FOLDER) if "live" in options.parts and not options.workload else {}
    figures["simulator_gap_max"] = max((one.gap for rows in live.values() for one in rows), default=None)
    details["live"] = {name: [asdict(one) for one in rows] for name, rows in live.items()}
    report = Report(
        name="asynchrony",
        figures=figures,
        seeds=[today.workload.seed for today in todays],
        load=[before, load_average()],
        baselines={today.workload.name: sum(today.seconds) for today in todays},
        details=details,
    )
    print_report(report, options.json)


def simulated(paths: Sequence[Path]) -> tuple[list[Today], list[list[ModeOutcome]]]:
    """Runs each workload under today's `dynamic` and under every mode, in simulated time."""
    todays: list[Today] = []
    outcomes: list[list[ModeOutcome]] = []
    for path in paths:
        workload = read_workload(path)
        todays.append(run_today(workload))
        outcomes.append([run_mode(workload, mode) for mode in MODES])
        shown = ", ".join(f"{one.mode} {ratio(todays[-1], one):.2f}" for one in outcomes[-1])
        progress(f"{workload.name}: {shown}; bound {sum(todays[-1].seconds) / sum(todays[-1].bound):.2f}")
    return todays, outcomes


def rows_of(today: Today, outcomes: Sequence[ModeOutcome]) -> list[dict[str, Any]]:
    """Returns a row per mode of a workload."""
    bound = statistics.fmean(today.bound)
    return [
        {
            "workload": today.workload.name,
            "ratio": ratio(today, outcome),
            "ratio_per_token": ratio_per_token(today, outcome),
            "over_bound": statistics.fmean(outcome.seconds) / bound,
            "bound_s": bound,
            **asdict(replace(outcome, tokens=[])),
        }
        for outcome in outcomes
    ]


def ratio_per_token(today: Today, outcome: ModeOutcome) -> float:
    """Returns how many more tokens a second a mode learns from; where lengths grow, what is stale is also shorter."""
    mine = sum(outcome.tokens) / sum(outcome.seconds)
    return mine / (sum(today.tokens) / sum(today.seconds))


if __name__ == "__main__":
    main()
