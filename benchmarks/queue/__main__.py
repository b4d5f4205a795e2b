"""How well does the queue share devices over seven days, beside a queue of whole runs in the order of arrival?

Consumes nothing: runs, failures and reclaims are drawn from seeds, and the decisions are those of `flows.queueing`.
128 devices in two pools, one of them spot; runs that want 8 to 64 devices arrive as a Poisson process at an offered load
of 0.95, with log-normal durations, a fifth of them at high priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.queue.fifo import decide_fifo
from benchmarks.queue.simulated_run import undisturbed_digest
from benchmarks.queue.simulator import Outcome, Policy, Simulator
from benchmarks.queue.workload import DAYS, HIGH, jobs, outages, pools
from flows.queueing.decisions import decide
from flows.queueing.forecasts import relative_error
from flows.queueing.limits import violations
from flows.queueing.pools import DAY, HOUR, PoolsSpec

SEEDS = (0, 1, 2, 3, 4)


def utilisation(spec: PoolsSpec, outcome: Outcome) -> float:
    """Returns the fraction of the devices' time within the days that runs held them; reclaimed devices do not count."""
    end = DAYS * DAY
    there = sum(len(pool.numbers) for pool in spec.pools.values()) * end - outcome.away_seconds
    held = sum(
        max(0.0, min(each.ended_at or end, end) - min(each.started_at, end)) * len(each.devices)
        for each in outcome.stretches
    )
    return held / there


def useful_fraction(outcome: Outcome) -> float:
    """Returns the fraction of held device time that went into iterations that were kept."""
    useful = sum(run.job.useful_seconds * run.job.devices for run in outcome.runs.values())
    return useful / sum(run.held_seconds * run.job.devices for run in outcome.runs.values())


def waits(outcome: Outcome, priority: int) -> list[float]:
    """Returns the hours that each run of a priority has waited in all."""
    return [run.waited / HOUR for run in outcome.runs.values() if run.job.priority == priority]


def cost_errors(outcome: Outcome) -> list[float]:
    """Returns the relative error of each cost that was predicted at a tenth of the run."""
    return [
        relative_error(run.predicted_cost, run.cost) for run in outcome.runs.values() if run.predicted_cost is not None
    ]


def simulate(seeds: Sequence[int], spec: PoolsSpec, policy: Policy, name: str) -> list[Outcome]:
    """Simulates each seed; fails if a run did not end or a limit was exceeded."""
    found = []
    for seed in seeds:
        outcome = Simulator(spec, jobs(seed, spec), outages(seed, spec), policy).run()
        unfinished = [run.job.run for run in outcome.runs.values() if run.ended_at is None]
        assert not unfinished, f"seed {seed}: {unfinished} did not end"
        exceeded = next(violations(spec, outcome.stretches), None)
        assert exceeded is None, exceeded
        progress(f"{name}, seed {seed}: {len(outcome.runs)} runs, utilisation {utilisation(spec, outcome):.3f}")
        found.append(outcome)
    return found


def offered(spec: PoolsSpec, seeds: Sequence[int]) -> float:
    """Returns the load that the drawn runs offer, without restarts and waste."""
    devices = sum(len(pool.numbers) for pool in spec.pools.values())
    work = [sum(job.useful_seconds * job.devices for job in jobs(seed, spec)) for seed in seeds]
    return fmean(work) / (devices * DAYS * DAY)


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="number of seeds, each seven days")
    arguments = parser.parse_args()
    before = load_average()
    spec = pools()
    seeds = tuple(range(arguments.seeds))
    ours = simulate(seeds, spec, decide, "queue")
    fifo = simulate(seeds, spec, decide_fifo, "FIFO")
    high = [hours for outcome in ours for hours in waits(outcome, HIGH)]
    high_fifo = [hours for outcome in fifo for hours in waits(outcome, HIGH)]
    errors = [error for outcome in ours for error in cost_errors(outcome)]
    runs = [run for outcome in ours for run in outcome.runs.values()]
    p95 = float(np.quantile(high, 0.95))
    p95_fifo = float(np.quantile(high_fifo, 0.95))
    low = [hours for outcome in ours for hours in waits(outcome, 0)]
    low_fifo = [hours for outcome in fifo for hours in waits(outcome, 0)]
    figures = {
        "utilisation": fmean(utilisation(spec, outcome) for outcome in ours),
        "utilisation_fifo": fmean(utilisation(spec, outcome) for outcome in fifo),
        "wait_p95_ratio_fifo": p95 / p95_fifo,
        "wait_p95_hours": p95,
        "cost_forecast_error": fmean(errors),
        "cost_forecast_error_p90": float(np.quantile(errors, 0.9)),
        "preemptions": float(sum(run.preempted for run in runs)),
        "digests_equal": float(all(run.digest == undisturbed_digest(run.job) for run in runs)),
        "useful_fraction": fmean(useful_fraction(outcome) for outcome in ours),
    }
    baselines = {
        "wait_p95_hours_fifo": p95_fifo,
        "useful_fraction_fifo": fmean(useful_fraction(outcome) for outcome in fifo),
        "offered_load": offered(spec, seeds),
    }
    details = {
        "runs": len(runs),
        "interruptions": sum(run.interrupted for run in runs),
        "predicted": len(errors),
        "normal_wait_hours_p50_p95_max": [float(value) for value in np.quantile(low, (0.5, 0.95, 1.0))],
        "normal_wait_hours_fifo_p50_p95_max": [float(value) for value in np.quantile(low_fifo, (0.5, 0.95, 1.0))],
        "decisions": sum(outcome.decisions for outcome in ours),
    }
    print_report(
        Report(
            name="queue",
            figures=figures,
            seeds=seeds,
            load=(before, load_average()),
            baselines=baselines,
            details=details,
        ),
        arguments.json,
    )


if __name__ == "__main__":
    main()
