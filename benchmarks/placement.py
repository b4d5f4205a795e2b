"""What does `dynamic` placement gain on described workloads, in simulated time, over every fixed placement?

Each workload runs under `colocate`, under every fixed split that a search for the best one tries (in hindsight, over
the whole run), and under `dynamic`: once with the engines' exact constants, once with constants fitted to telemetry.
The baselines are first compared with golden figures. On request, writes a log of all actions of `dynamic`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.placement_files import is_steady, read_workload
from benchmarks.placement_live import live_runs
from benchmarks.placement_lower_bound import wave_lower_bound
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.simulation.campaign import Campaign, draw_iterations, run_campaign, setting_of
from yatt_core.placement.workload import Scenario, value_at

FOLDER = Path(__file__).parent / "placement_workloads"
GOLDEN = FOLDER / "golden.json"
EXHAUSTIVE = 16
GRID = (0.05, 0.1, 0.15, 0.2, 0.25, 0.33, 0.5, 0.67)
PARTS = ("policies", "live")
JUDGE_SHARE = 0.25
SIGMA = 0.4
"""The reduction against colocate counts for workloads with at least this judge share and this spread."""


@dataclass(slots=True)
class Outcome:
    """The seconds of a workload's collect phases, by iteration. splits: by number of judging instances."""

    name: str
    steady: bool
    counted: bool
    colocate: list[float]
    splits: dict[int, list[float]]
    bound: list[float]
    dynamic: list[float]
    fitted: list[float]
    judge_share: float
    changed_starts: int
    plan_cpu_s: float
    tick_cpu_s: float
    golden: Mapping[str, Any] | None
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def best_judges(self) -> int:
        """The number of judging instances of the best split in hindsight."""
        return min(self.splits, key=lambda f: (sum(self.splits[f]), f))

    @property
    def best(self) -> list[float]:
        """The collect seconds of the best split in hindsight."""
        return self.splits[self.best_judges]

    @property
    def ratio_to_split(self) -> float:
        """The total of dynamic relative to the best split in hindsight."""
        return sum(self.dynamic) / sum(self.best)


def best_split(totals: Callable[[int], float], instances: int) -> int:
    """Finds the number of judging instances with the least total.

    With at most 16 instances it tries every number; with more, first a grid and then ever narrower brackets.
    """
    if instances <= EXHAUSTIVE:
        return min(range(1, instances), key=lambda f: (totals(f), f))
    tried = sorted({max(1, min(instances - 1, round(instances * share))) for share in GRID})
    while True:
        best = min(tried, key=lambda f: (totals(f), f))
        place = tried.index(best)
        left = tried[place - 1] if place else 0
        right = tried[place + 1] if place + 1 < len(tried) else instances
        between = {(left + best) // 2, (best + right) // 2, best - 1, best + 1} - set(tried)
        new = sorted(f for f in between if 0 < f < instances)
        if not new:
            return best
        tried = sorted({*tried, *new})


def run_workload(path: Path) -> Outcome:
    """Runs one workload under all placements."""
    workload = read_workload(path)
    setting = setting_of(workload)
    iterations = draw_iterations(workload)
    splits: dict[int, list[float]] = {}

    def total(judges: int) -> float:
        if judges not in splits:
            splits[judges] = run_campaign(workload, SplitPool(judges)).collect_s
        return sum(splits[judges])

    best_split(total, len(setting.speeds))
    golden = golden_of(workload)
    for judges in golden["splits"] if golden else ():
        total(int(judges))
    colocate = run_campaign(workload, ColocatePool())
    log: list[dict[str, Any]] = []
    dynamic = run_campaign(workload, Dynamic(), log=log.append)
    return Outcome(
        name=workload.name,
        steady=is_steady(workload),
        counted=judge_share(colocate) >= JUDGE_SHARE and spread(workload) >= SIGMA,
        colocate=colocate.collect_s,
        splits=dict(sorted(splits.items())),
        bound=[sum(wave_lower_bound(setting, wave) for wave in waves) for waves in iterations],
        dynamic=dynamic.collect_s,
        fitted=run_campaign(workload, Dynamic(fit=True)).collect_s,
        judge_share=judge_share(colocate),
        changed_starts=changed_starts(dynamic),
        plan_cpu_s=max(dynamic.plan_cpu_s),
        tick_cpu_s=dynamic.tick_cpu_s,
        golden=golden,
        log=log,
    )


def judge_share(colocate: Campaign) -> float:
    """Returns the fraction of collect that comes after the last rollout, under a placement where all roles take turns."""
    return sum(iteration.judging_s for iteration in colocate.past) / sum(colocate.collect_s)


def spread(workload: Scenario) -> float:
    """Returns the minimum sigma of the responses' lengths over the run."""
    return min(value_at(workload.samples.response.sigma, iteration) for iteration in range(workload.iterations))


def changed_starts(campaign: Campaign) -> int:
    """Counts iterations that start with other roles than the one before; a change right after the cold start is left out."""
    changed = [a.roles != b.roles for a, b in zip(campaign.plans, campaign.plans[1:], strict=False)]
    return max(0, sum(changed) - 1) if changed and changed[0] else sum(changed)


# -- large pools ---------------------------------------------------------------------------------------------------------


def decide_at(path: Path, times: int) -> float:
    """Returns the CPU seconds of planning a workload with `times` its devices and prompts.

    Takes the slower of the cold start's plan and the next one, which is the first with telemetry.
    """
    workload = read_workload(path)
    groups = tuple(g.model_copy(update={"devices": g.devices * times}) for g in workload.cluster.groups)
    larger = workload.model_copy(
        update={
            "iterations": 2,
            "cluster": workload.cluster.model_copy(update={"groups": groups}),
            "samples": workload.samples.model_copy(update={"prompts": workload.samples.prompts * times}),
        }
    )
    return max(run_campaign(larger, Dynamic()).plan_cpu_s)


# -- figures -------------------------------------------------------------------------------------------------------------


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Computes the figures from the outcomes; None if a key has no meaning for them."""
    named = {outcome.name: outcome for outcome in outcomes}
    ratios = [outcome.ratio_to_split for outcome in outcomes]
    counted = [1.0 - sum(o.dynamic) / sum(o.colocate) for o in outcomes if o.counted]
    gaps = [gap for outcome in outcomes if outcome.golden for gap in golden_gaps(outcome, outcome.golden)]
    return {
        "golden_gap_max": max(gaps, default=None),
        "worst_ratio_to_best_split": max(ratios),
        "geomean_ratio_to_best_split": statistics.geometric_mean(ratios),
        "ratio_sudden_shift": named["sudden_shift"].ratio_to_split if "sudden_shift" in named else None,
        "ratio_drift": named["drift_500_to_8000"].ratio_to_split if "drift_500_to_8000" in named else None,
        "worst_ratio_to_best_split_fitted": max(sum(o.fitted) / sum(o.best) for o in outcomes),
        "mean_ratio_to_lower_bound": statistics.fmean(sum(o.dynamic) / sum(o.bound) for o in outcomes),
        "least_reduction_vs_colocate": min(counted, default=None),
        "mean_reduction_vs_colocate": statistics.fmean(counted) if counted else None,
        "worst_ratio_to_colocate": max(sum(o.dynamic) / sum(o.colocate) for o in outcomes),
        "worst_iteration_ratio_to_colocate": max(
            mine / other for o in outcomes for mine, other in zip(o.dynamic, o.colocate, strict=True)
        ),
        "changed_starts_per_10_steady": max(
            (10 * o.changed_starts / len(o.dynamic) for o in outcomes if o.steady), default=None
        ),
        "decide_cpu_s_max": max(o.plan_cpu_s for o in outcomes),
    }


def golden_of(workload: Scenario) -> Mapping[str, Any] | None:
    """Returns the golden figures of a described workload; None for any other one, even of the same name."""
    if all(read_workload(path) != workload for path in FOLDER.glob("*.yaml")):
        return None
    golden: Mapping[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))[workload.name]
    return golden


def golden_gaps(outcome: Outcome, golden: Mapping[str, Any]) -> Iterator[float]:
    """Yields relative distances to the golden figures.

    For `colocate` and the golden best split, iterations are compared; for all splits, totals.
    """
    yield from _gaps(outcome.colocate, golden["colocate"]["per_iteration"])
    yield from _gaps(outcome.splits[golden["best_split"]["f"]], golden["best_split"]["per_iteration"])
    yield from _gaps([sum(outcome.splits[int(f)]) for f in golden["splits"]], list(golden["splits"].values()))


def _gaps(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [abs(a - b) / b for a, b in zip(mine, theirs, strict=True)]


def rows_of(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns a row per policy."""
    policies = {
        "colocate": outcome.colocate, f"split({outcome.best_judges})": outcome.best,
        "dynamic": outcome.dynamic, "dynamic, fitted": outcome.fitted, "lower bound": outcome.bound,
    }  # fmt: skip
    return [
        {"workload": outcome.name, "policy": policy, "collect_s": sum(seconds), "per_iteration_s": seconds}
        for policy, seconds in policies.items()
    ]


def main() -> None:
    """Runs the benchmark and prints its report."""
    parser = argument_parser(__doc__)
    parser.add_argument("--workload", type=Path, nargs="+", help="workload files in place of the eleven")
    parser.add_argument("--log", type=Path, help="write the actions of `dynamic` there, as JSON lines")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: everything)"
    )
    options: argparse.Namespace = parser.parse_args()
    before = load_average()
    paths: list[Path] = options.workload or sorted(FOLDER.glob("*.yaml"))
    outcomes: list[Outcome] = []
    figures: dict[str, float | None] = {}
    if "policies" in options.parts:
        for path in paths:  # One after the other: two threads of one core would lengthen each other's CPU seconds.
            outcomes.append(run_workload(path))
            progress(f"{outcomes[-1].name}: {outcomes[-1].ratio_to_split:.3f} of the best split")
        figures = figures_of(outcomes)
        figures["decide_cpu_s_16384"] = None if options.workload else decide_at(FOLDER / "w11_large_512.yaml", 32)
    live = live_runs(FOLDER) if "live" in options.parts and not options.workload else {}
    figures["simulator_gap_max"] = max((one.gap for rows in live.values() for one in rows), default=None)
    figures["foresight_gap_max"] = max((one.foresight_gap for rows in live.values() for one in rows), default=None)
    if options.log is not None:
        with options.log.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for outcome in outcomes for line in outcome.log)
    report = Report(
        name="placement",
        figures=figures,
        seeds=[read_workload(path).seed for path in paths],
        load=[before, load_average()],
        baselines={
            outcome.name: {"best_split": sum(outcome.best), "colocate": sum(outcome.colocate)} for outcome in outcomes
        },
        details={
            "workloads": [row for outcome in outcomes for row in rows_of(outcome)],
            "live": {name: [asdict(one) for one in rows] for name, rows in live.items()},
        },
    )
    print_report(report, options.json)


if __name__ == "__main__":
    main()
