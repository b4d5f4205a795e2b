"""Does Flow-GRPO make a small diffusion model draw what it is asked for, and is each of its iterations exact?

The workload `ShapeDrawing` is driven in this process, without YATT's services: a text-conditioned flow model of at most 2M
parameters learns shapes with a quarter of the captions wrong, then by reinforcement learning; each seed on one core. The reward
is the share of held-out images that have the named shape and colour, by a rule. A control learns from the same advantages in a
random order. `--work` keeps what is finished, and a later call goes on. `--method` trains by another method in a short course of
its own, for which there is no control.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common import PACKAGES, Report, argument_parser, load_average, package_versions, print_report, progress
from benchmarks.diffusion.exactness import measured_exactness
from benchmarks.diffusion.training import COURSES, GAP, SETTINGS, Settings, ShuffledDrawing, pretrained, trained
from benchmarks.workloads.found import kept_or_measured
from yatt_core.workloads.diffusion.drawing import ShapeDrawing

SEEDS = (1, 2, 3)
"""Those that are measured; the settings were chosen on seed 0."""
MEANS = ("reward_start", "reward_end", "reward_control", "valid_start", "valid_end")
LARGEST = ("logprob_gap", "logprob_gap_any_batch", "seconds")
Figures = Mapping[str, float]


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--method", choices=sorted(COURSES), default="grpo", help="what is learnt by (default grpo)")
    parser.add_argument(
        "--updates", type=int, help="optimizer steps of the policy (default: those of the method's course)"
    )
    parser.add_argument("--work", type=Path, help="folder that keeps what is finished (default: a temporary one)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before = load_average()
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch)
        method = arguments.method
        updates = arguments.updates or COURSES[method].updates
        if method == "grpo":
            found = {seed: measure(work / f"seed-{seed}-{updates}", seed, updates) for seed in arguments.seeds}
            report = report_of(found, updates, before)
        else:
            found = {
                seed: measure_course(work / f"{method}-{seed}-{updates}", seed, method, updates)
                for seed in arguments.seeds
            }
            report = report_of_course(found, method, updates, before)
    print_report(report, arguments.json)


def report_of(found: Mapping[int, Figures], updates: int, before: float) -> Report:
    """Returns the report on some seeds. before: the load before the first one."""
    each = list(found.values())
    return Report(
        name="diffusion",
        figures={
            **{name: fmean(one[name] for one in each) for name in MEANS},
            **{name: max(one[name] for one in each) for name in LARGEST},
            "reward_ratio_min": min(one["reward_end"] / max(one["reward_start"], 1e-9) for one in each),
            "digests_equal": min(one["digests_equal"] for one in each),
        },
        seeds=sorted(found),
        load=[before, load_average()],
        details={"updates": updates, "seeds": {str(seed): dict(one) for seed, one in found.items()}},
        versions=package_versions((*PACKAGES, "diffusers")),
    )


def measure(folder: Path, seed: int, updates: int, settings: Settings = SETTINGS) -> dict[str, float]:
    """Returns the figures of a seed. folder: keeps what is finished; what it has is not measured again.

    `seconds` are those of the processor for pre-training, the policy's updates and its evaluations.
    """
    start = pretrained(folder, seed, settings)
    progress(f"seed {seed}: {_shown(start)} after pre-training")
    end = trained(ShapeDrawing, folder, seed=seed, updates=updates, settings=settings)
    progress(f"seed {seed}: {_shown(end)} after {updates} updates")
    exact = kept_or_measured(folder / "exactness.json", lambda: measured_exactness(folder, seed, updates, settings))
    progress(f"seed {seed}: gaps and digests {exact}")
    control = trained(ShuffledDrawing, folder, seed=seed, updates=updates, settings=settings)
    progress(f"seed {seed}: {_shown(control)} with shuffled advantages")
    return {
        "reward_start": start["reward"],
        "reward_end": end["reward"],
        "reward_control": control["reward"],
        "valid_start": start["valid"],
        "valid_end": end["valid"],
        "valid_control": control["valid"],
        "logprob_gap": max(end[GAP], exact["gap"]),
        "logprob_gap_any_batch": exact["gap_any_batch"],
        "logprob_gap_bfloat16": exact["gap_bfloat16"],
        "logprob_gap_any_batch_bfloat16": exact["gap_any_batch_bfloat16"],
        "digests_equal": exact["digests_equal"],
        "seconds": start["seconds"] + end["seconds"],
        "parameters": start["parameters"],
    }


def measure_course(folder: Path, seed: int, method: str, updates: int) -> dict[str, float]:
    """Returns the figures of a seed's short course by a method. folder: as for `measure`."""
    course = COURSES[method]
    start = pretrained(folder, seed, course.settings, course.kind)
    progress(f"seed {seed}: {_shown(start)} after pre-training")
    end = trained(course.kind, folder, seed=seed, updates=updates, settings=course.settings)
    progress(f"seed {seed}: {_shown(end)} after {updates} updates by {method}")
    return {
        "reward_start": start["reward"],
        "reward_end": end["reward"],
        "valid_start": start["valid"],
        "valid_end": end["valid"],
        "logprob_gap": end[GAP],
        "seconds": start["seconds"] + end["seconds"],
        "parameters": start["parameters"],
    }


def report_of_course(found: Mapping[int, Figures], method: str, updates: int, before: float) -> Report:
    """Returns the report on some seeds of a method's course: means, but the largest gap and the slowest seed's seconds."""
    each = list(found.values())
    names = ("reward_start", "reward_end", "valid_start", "valid_end")
    return Report(
        name="diffusion",
        figures={
            **{name: fmean(one[name] for one in each) for name in names},
            **{name: max(one[name] for one in each) for name in ("logprob_gap", "seconds")},
        },
        seeds=sorted(found),
        load=[before, load_average()],
        details={"method": method, "updates": updates, "seeds": {str(seed): dict(one) for seed, one in found.items()}},
        versions=package_versions((*PACKAGES, "diffusers")),
    )


def _shown(figures: Figures) -> str:
    return f"reward {figures['reward']:.3f}, valid {figures['valid']:.3f}, {figures['seconds']:.0f} s"


if __name__ == "__main__":
    main()
